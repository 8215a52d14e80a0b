"""One rank makes the groups of two pairs in the other order, and so talks to a wrong peer.

Its first group has the name that the first group of the others has, and finds their members
in the store. It reduces its gradient with one of them, whose real peer waits for ever.
"""
# Rank 1 is let into its group too late. If gloo has it connect to rank 0 it leaves new_group, and
# rank 3 is likely; else nobody knows in which group it waits, and rank 0 is as possible a culprit.
# expect: certainty=possible|likely
# expect: state=hang kind=init_incomplete culprits=3|0,3 victims=0,1,2|1,2 text=joined

import time

import torch
import torch.distributed as dist

REPLICAS = {"a": [0, 1], "b": [2, 3]}


def make_groups(names):
    """All ranks have to make all groups in one order; a set has none."""
    groups = {}
    for name in names:
        groups[name] = dist.new_group(REPLICAS[name])
    return groups


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    names = ["b", "a"] if rank == 3 else ["a", "b"]
    time.sleep((2, 3, 1, 0)[rank])  # so that it is always the same that find each other
    groups = make_groups(names)
    mine = next(groups[name] for name, ranks in REPLICAS.items() if rank in ranks)
    gradient = torch.randn(64)
    for _ in range(30):
        dist.all_reduce(gradient, group=mine)
        dist.all_reduce(gradient)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: group_creation at `names = ["b", "a"] if...` | group_creation at `groups[name] = ...`
