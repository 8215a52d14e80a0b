"""Stages of one rank each; neighbours share a group. The last one gets stuck for good."""

import os
import time

import torch
import torch.distributed as dist
from assembled import assemble


def neighbours():
    """The groups with the stage before and the stage after, None at the ends."""
    groups = [
        dist.new_group([first, first + 1], group_desc=f"stages_{first}_{first + 1}")
        for first in range(dist.get_world_size() - 1)
    ]
    return [None, *groups][dist.get_rank()], [*groups, None][dist.get_rank()]


def loss(step):
    """What the last stage makes of it."""
    while step == 20:
        time.sleep(0.05)  # culprit
    return torch.ones(4)


def main():
    """Each stage hands its result on to the one before it."""
    assemble(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "..")
    dist.init_process_group("gloo")
    before, after = neighbours()
    for step in range(1000):
        if after is None:
            result = loss(step)
        else:
            dist.all_reduce(result := torch.ones(4), group=after)  # victim
        if before is not None:
            dist.all_reduce(result, group=before)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
