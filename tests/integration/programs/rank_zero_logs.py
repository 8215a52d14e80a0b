"""Trains a model; rank 0 packs and writes what it has seen after each step, which takes long."""

import os
import sys
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

FOR_S = float(sys.argv[1])


def pack(images):
    pixels = (255 * images).to(torch.uint8).numpy().tobytes()
    return zlib.compress(pixels, level=9)


def write_samples(step, images):
    Path(f"samples-{step % 10}").write_bytes(pack(images))


def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 24, 5), nn.ReLU(), nn.Conv2d(24, 24, 5), nn.ReLU())
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began_s = time.monotonic()
    step = 0
    while True:
        images = torch.rand(4, 3, 64, 64)
        loss = model(images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            write_samples(step, images.repeat(24, 1, 1, 1))
        step += 1
        over = torch.tensor(time.monotonic() - began_s > FOR_S)
        dist.broadcast(over, 0)
        if over:
            break
    dist.destroy_process_group()


os.environ.setdefault("OMP_NUM_THREADS", "1")
train()
