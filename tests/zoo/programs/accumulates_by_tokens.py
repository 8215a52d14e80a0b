"""A window of gradient accumulation ends after so many tokens, which one rank counts otherwise.

It keeps the gradients of a step to itself that the others average. Which call the others then find
there depends on the steps that follow.
"""
# launched with --nproc-per-node=3
# expect: state=hang kind=op_mismatch culprits=1 victims=0,2
# expect: site=culprit certainty=proved

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BUDGET = 400
"""Tokens of a window."""


def tokens_of(rank, step):
    return 100 if (rank, step) != (1, 31) else 60


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = 0
    for step in range(80):
        seen += tokens_of(rank, step)
        window_ends = seen >= BUDGET
        local = contextlib.nullcontext() if window_ends else model.no_sync()
        with local:
            model(torch.randn(8, 16)).square().mean().backward()
        if window_ends:
            optimizer.step()
            optimizer.zero_grad()
            seen = 0
        if step % 16 == 15:
            dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: no_sync at `local = contextlib.nullcontext() if window_ends else model.no_sync()`
