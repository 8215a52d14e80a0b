"""A rank is stuck before backward(), while a thread of each rank goes on in a group of its own.

What the others wait for was issued by C++, and has no call in Python: that c10d's counters go on
is the thread's doing alone.
"""
# launched with --nproc-per-node=3
# expect: state=hang kind=never_entered culprits=2 victims=0,1
# expect: site=culprit certainty=likely

import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STUCK = (2, 8)
"""A rank, and the step at which it asks for what never comes."""


def report_health(group, over):
    """Compare notes several times a second, for as long as the job lives."""
    well = torch.ones(1)
    while not over.is_set():
        dist.all_reduce(well, group=group)
        time.sleep(0.1)


def batch(rank, step):
    if (rank, step) == STUCK:
        threading.Event().wait()  # culprit
    return torch.randn(8, 32)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group()
    over = threading.Event()
    threading.Thread(target=report_health, args=(group, over), daemon=True).start()
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    for step in range(30):
        model(batch(rank, step)).square().mean().backward()
    over.set()


if __name__ == "__main__":
    main()

# cause: stuck_line at `threading.Event().wait()`
