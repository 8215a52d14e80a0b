"""Rank 1 stalls, and rank 0 stands for NCCL's RAS service, at NCCL_RAS_ADDR: a fake."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fake_ras import FakeRas, absent, member, status


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pids = [None, None]
    dist.all_gather_object(pids, os.getpid())
    if rank == 0:
        port = int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2])
        FakeRas(status(member(0, pids[0]), missing=(absent(1, pids[1]),)), port=port)
    for step in range(20):
        if rank == 1 and step == 10:
            time.sleep(1000)
        dist.all_reduce(torch.ones(4))


main()
