"""Rank 2 uses more memory than its control group may, which is the argument.

The kernel then ends it with a plain SIGKILL.
"""

import os
import sys
from pathlib import Path

if os.environ["RANK"] == "2":
    Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    kept = []
    for step in range(200):
        dist.all_reduce(torch.ones(4))  # victim
        if rank == 2 and step >= 20:
            kept.append(torch.ones(1 << 25))  # 128 MiB, all of it written to
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
