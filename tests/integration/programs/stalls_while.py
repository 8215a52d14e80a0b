"""Trains until told to stop. Rank 1 is in its own code for as long as a file exists.

Arguments: that file, and the file that ends it all.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STALL, END = map(Path, sys.argv[1:])


def keeps_busy():
    while STALL.exists():
        time.sleep(0.05)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1], group_desc="pair")
    over = torch.zeros(1)
    step = 0
    while not over:
        if rank == 1:
            keeps_busy()
            time.sleep(0.005)  # the last to arrive
        over = torch.tensor([float(END.exists())])
        dist.all_reduce(over)
        if rank < 2:
            dist.all_reduce(torch.ones(4), group=pair)
        if rank == 0:
            dist.send(over, 2)
        if rank == 2:
            dist.recv(torch.zeros(1), 0)
        step += 1
        if step == 50 and rank == 0:
            print("training", flush=True)
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
