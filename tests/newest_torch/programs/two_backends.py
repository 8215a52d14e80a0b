"""Replicas train by DDP, and their leaders average a metric through another backend.

The leader of the second replica writes a checkpoint on its own, which does not come to its end:
its replica waits for its gradient, and the other leader, in the second backend, for its metric.
"""
# expect: state=hang kind=never_entered certainty=likely culprits=2 victims=0,1,3
# expect: op=all_reduce site=culprit

import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    replicas = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    leaders = dist.new_group([0, 2], backend="second", group_desc="leaders")
    model = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=replicas[rank // 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        loss = model(torch.ones(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank in (0, 2):
            if (rank, step) == (2, 12):
                time.sleep(10_000)  # culprit
            functional.all_reduce(loss.detach(), "sum", leaders).wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
