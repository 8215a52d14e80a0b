"""A rank of DDP is stopped where no Flight Recorder tells what C++ issues (torch before 2.8)."""
# expect: state=hang kind=never_entered reason=stopped culprits=1 victims=0,2,3
# expect: op=collective site=culprit victim_site=victim certainty=likely|possible

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.environ["TORCH_FR_BUFFER_SIZE"] = "0"


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(200):
        loss = model(torch.ones(2, 4)).sum()
        if step == 10 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)  # culprit
        loss.backward()  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `os.kill(os.getpid(), signal.SIGSTOP)`
