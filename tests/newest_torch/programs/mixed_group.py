"""One group with two backends: gradients on the device, a metric and barriers on the host.

After an epoch one rank does not come back from what it does alone; with --amid it stops within
the epoch. With --quiet all rest for a while after a barrier, and nobody waits.
"""
# expect: state=hang kind=never_entered certainty=likely culprits=1 victims=0,2,3
# expect: op=all_reduce site=culprit
# expect --amid: state=hang kind=never_entered certainty=likely culprits=1 victims=0,2,3
# expect --amid: op=all_reduce site=amid
# expect --quiet: state=ok exit=0

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(4):
        seen = torch.zeros(1, device="cpu")
        for step in range(6):
            loss = model(torch.ones(4, 8)).square().mean()
            optimizer.zero_grad()
            if "--amid" in sys.argv and (rank, epoch, step) == (1, 2, 3):
                time.sleep(10_000)  # amid
            loss.backward()
            optimizer.step()
            seen += 4
        if sys.argv[1:] == [] and (rank, epoch) == (1, 2):
            time.sleep(10_000)  # culprit
        dist.all_reduce(seen)
        dist.barrier()
        if "--quiet" in sys.argv and epoch == 1:
            time.sleep(25)  # all of them
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
