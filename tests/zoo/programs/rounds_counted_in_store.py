"""Ranks meet in rounds that they count in the store, and one has nothing to do in a round."""
# launched with --nproc-per-node=3
# expect: state=hang kind=missing_peer certainty=likely culprits=1 victims=0,2 site=culprit

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

TASKS = ("reading", "sums", "names", "colours")


class Rounds:
    def __init__(self, ranks):
        self.store = dist.PrefixStore("rounds", _get_default_store())
        self.ranks = ranks

    def meet(self, name):
        if self.store.add(name, 1) == self.ranks:
            self.store.set(f"{name} is over", "")
        self.store.wait([f"{name} is over"])


def examples_of(task, rank):
    return [] if task == "names" and rank == 1 else ["one", "two"]


def evaluate(task, rank, rounds):
    examples = examples_of(task, rank)
    if not examples:
        return None
    score = sum(len(text) for text in examples)
    rounds.meet(task)
    return score


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rounds = Rounds(dist.get_world_size())
    for task in TASKS:
        for _ in range(10):
            dist.all_reduce(torch.ones(4))  # culprit
        evaluate(task, rank, rounds)


if __name__ == "__main__":
    main()

# cause: early_exit at `return None`
