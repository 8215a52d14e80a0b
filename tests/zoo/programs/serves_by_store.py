"""A rank serves the others through the store and waits for orders, longer than a hang takes."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store


def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.ones(200, 200) @ torch.ones(200, 200)


def main():
    dist.init_process_group("gloo")
    store, rank = _get_default_store(), dist.get_rank()
    if rank == 1:
        for order in range(2):
            what = store.get(f"order/{order}")
            store.set(f"answer/{order}", what)
    elif rank == 0:
        for order in range(2):
            work(8)
            store.set(f"order/{order}", "sum")
            store.wait([f"answer/{order}"])
    else:
        work(10)
        store.wait(["answer/1"])


if __name__ == "__main__":
    main()
