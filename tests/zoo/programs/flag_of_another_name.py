"""A rank waits for a flag of the first one below the name that it had in an older version."""
# expect: state=hang kind=never_entered reason=store_wait certainty=likely culprits=2
# expect: op=all_reduce site=culprit
# expect --all: state=hang kind=missing_peer reason=store_wait certainty=possible culprits=0,1,2,3

import datetime as dt
import sys

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

LONG = dt.timedelta(minutes=30)


def evaluated(store, rank, step):
    if rank == 0:
        store.set(f"evaluated-{step}", "1")
    elif rank == 2 and step > 9 and "--all" not in sys.argv:
        store.wait([f"evaluated_{step}"], LONG)  # culprit
    else:
        store.wait([f"evaluated-{step}"], LONG)


def main():
    dist.init_process_group("gloo")
    store = dist.PrefixStore("evaluation", _get_default_store())
    for step in range(20):
        dist.all_reduce(torch.ones(4))
        if step % 5 == 4:
            evaluated(store, dist.get_rank(), step)
        if step == 17 and "--all" in sys.argv:
            store.get("go on")  # all


if __name__ == "__main__":
    main()

# cause: stuck_line at `store.wait([f"evaluated_{step}"], LONG)`
# cause --all: stuck_line at `store.get("go on")`
