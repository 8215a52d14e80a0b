"""Trains on GPUs that ranks may share, until told to stop; at step 30 something happens to rank 1.

Arguments: the backend, what happens (kernel, program, nothing), and the file that ends it all.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

BACKEND, FAULT, END = sys.argv[1], sys.argv[2], Path(sys.argv[3])
FOR_EVER = 1 << 42  # cycles: 40 minutes


def step(weights, gradient):
    torch.mm(weights, weights)
    gradient.fill_(1.0)
    dist.all_reduce(gradient)
    return gradient


def main():
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    weights = torch.randn(512, 512, device=device)
    gradient = torch.ones(1024, device=device)
    over = torch.zeros(1, device=device)
    number = 0
    while not over.item():
        number += 1
        if number == 30:
            if rank == 0:
                print("at the fault", flush=True)
            if rank == 1 and FAULT == "kernel":
                torch.cuda._sleep(FOR_EVER)  # noqa: SLF001 (a kernel that runs for so long)
            if rank == 1 and FAULT == "program":
                time.sleep(10_000)
        step(weights, gradient)
        over.fill_(float(END.exists()))
        dist.all_reduce(over)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
