"""Trains until told to stop; rank 1 may stall on the way: in its own code, or in its loader.

Arguments: what rank 1 does (``goes_on``, ``stalls``, ``loads``), and a file that ends it all.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

WHAT, END = sys.argv[1], Path(sys.argv[2])
STALLED_RANK, STALLED_STEP = 1, 20


def wait_for_release():
    while not END.exists():
        time.sleep(2)  # who looks would find it running where it wakes up again and again


class Samples:
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        if WHAT == "loads" and self.rank == STALLED_RANK and index == STALLED_STEP:
            wait_for_release()
        return torch.ones(4)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step, sample in enumerate(DataLoader(Samples(rank), batch_size=None, num_workers=1)):
        if WHAT == "stalls" and rank == STALLED_RANK and step == STALLED_STEP:
            wait_for_release()
        over = torch.tensor([float(END.exists())])
        dist.all_reduce(over)
        dist.all_reduce(sample)
        if over:
            break
        if rank == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
