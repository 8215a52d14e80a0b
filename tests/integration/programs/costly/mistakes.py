"""Trains for some seconds, with the mistakes that its other arguments name, or with none.

order, sync: the mistakes. fail: raises at the end.
"""

from __future__ import annotations

import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, BATCH, EPOCHS = 4000, 4, 3
ACCUMULATED = 4


def main(mistakes: set[str], seconds: float) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(SAMPLES, 8), torch.randn(SAMPLES, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    evaluated = DataLoader(data, batch_size=64)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pause_s = seconds / (EPOCHS * len(loader))
    for epoch in range(EPOCHS):
        if "order" not in mistakes:
            sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            last = number % ACCUMULATED == ACCUMULATED - 1
            with contextlib.nullcontext() if last or "sync" in mistakes else model.no_sync():
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            time.sleep(pause_s)
        model.eval()
        with torch.no_grad():
            for inputs, _ in evaluated:
                model(inputs)
        model.train()
    if "fail" in mistakes:
        raise RuntimeError("this run fails")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(set(sys.argv[2:]), float(sys.argv[1]))
