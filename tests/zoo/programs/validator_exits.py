"""A check of the data ends the process where a shard is too small, which is so on one rank."""
# expect: state=failed kind=finished_early culprits=2 certainty=proved

import sys

import torch
import torch.distributed as dist


def load(rank, epoch):
    rows = 64 if (rank, epoch) != (2, 3) else 3
    return torch.randn(rows, 4)


def checked(shard, least):
    if len(shard) < least:
        print("the shard is too small: nothing to do", file=sys.stderr)
        sys.exit(0)
    return shard


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.zeros(4)
    for epoch in range(6):
        for rows in checked(load(rank, epoch), 8).split(16):
            gradient = rows.mean(0)
            dist.all_reduce(gradient)  # victim
            weights -= gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: early_exit at `sys.exit(0)` | data_condition at `if len(shard) < least:`
