"""Gradient accumulation with no_sync on all ranks alike, and long steps in between."""
# expect: state=ok exit=0

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 8


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in range(1, 33):
        time.sleep(0.1 + 0.1 * ((batch + rank) % 3))
        last = batch % ACCUMULATE == 0
        with nullcontext() if last else model.no_sync():
            loss = model(torch.randn(8, 32)).square().mean()
            (loss / ACCUMULATE).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
