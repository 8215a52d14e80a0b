"""Ranks meet in a store that is written in Python, and leaves to its base what it can."""
# expect: state=ok exit=0

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store


class Logged(dist.Store):
    """Hands each call on to another store."""

    def __init__(self, store):
        super().__init__()
        self.store = store
        self.asked = []

    def get(self, key):
        self.asked.append(key)
        return self.store.get(key)

    def set(self, key, value):
        self.store.set(key, value)

    def add(self, key, amount):
        return self.store.add(key, amount)

    def wait(self, keys, *timeout):
        self.store.wait(keys, *timeout)

    def check(self, keys):
        return self.store.check(keys)


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    logged = Logged(_get_default_store())
    store = dist.PrefixStore("logged", logged)
    for turn in range(20):
        store.multi_set([f"{turn}/{rank}"], [str(turn)])
        values = store.multi_get([f"{turn}/{other}" for other in range(ranks)])
        assert values == [str(turn).encode()] * ranks, values
        dist.all_reduce(torch.ones(4))
    assert logged.asked


if __name__ == "__main__":
    main()
