"""A rank gets no more batches from a queue of its own, and has a thread that only sleeps."""
# expect: state=hang kind=never_entered reason=user_code culprits=2 victims=0,1
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible
# With --ddp C++ makes the calls.
# expect --ddp: state=hang kind=never_entered reason=user_code culprits=2 victims=0,1
# expect --ddp: op=all_reduce group=default_pg site=culprit certainty=likely|possible
# launched with --nproc-per-node=3

import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

batches = queue.Queue()


def monitor():
    while True:
        time.sleep(1)


def main():
    dist.init_process_group("gloo")
    threading.Thread(target=monitor, daemon=True).start()
    model = torch.nn.Linear(4, 1)
    if "--ddp" in sys.argv:
        model = DistributedDataParallel(model)
    for _ in range(10 if dist.get_rank() == 2 else 20):
        batches.put(torch.ones(4))
    for _ in range(20):
        batch = batches.get()  # culprit
        model(batch).sum().backward()
        if "--ddp" not in sys.argv:
            dist.all_reduce(model.weight.grad)


if __name__ == "__main__":
    main()

# cause: stuck_line at `batch = batches.get()` | uneven_loop at `for _ in range(10 if...`
# cause --ddp: stuck_line at `batch = batches.get()` | uneven_loop at `for _ in range(10 if...`
