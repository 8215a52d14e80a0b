"""One rank never reaches init_process_group: it waits for a file that nobody writes."""
# expect: state=hang kind=init_incomplete reason=user_code culprits=3 victims=0,1,2
# expect: site=culprit victim_site=victim forks=no certainty=likely|possible

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.2)  # culprit


def main():
    rank = int(os.environ["RANK"])
    if rank == 3:
        wait_for("/nonexistent/tokenizer.json")
    dist.init_process_group("gloo")  # victim
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    print(f"rank {rank}: {total.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: setup at `time.sleep(0.2)` | setup at `while not Path...` | setup at `if rank == 3:`
