"""A job whose ranks do something odd around one of the calls that set it up.

ACT is what, WHEN the moment, WHO the rank (-1: each). An act that ends a rank is done by
one, and the other waits for its own end then.
"""

import atexit
import os
import threading
import time

ACT, WHEN, WHO = os.environ["ACT"], os.environ["WHEN"], int(os.environ["WHO"])
RANK = int(os.environ["RANK"])
PATIENCE_S = 60.0
STEPS = 30


def moment(name):
    if name != WHEN or "AGAIN" in os.environ:
        return
    import acts

    kind, _, value = ACT.partition(":")
    if kind in acts.ENDS:
        if RANK == WHO:
            if name == "at-exit":
                await_other()
            acts.ENDS[kind]()
        elif name != "at-exit":
            time.sleep(PATIENCE_S)
    elif kind in acts.ACTS and WHO in (-1, RANK):
        acts.ACTS[kind](value)


def await_other():
    """Wait until the other rank has done all, since its launcher is about to end it."""
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(f"out-{1 - RANK}") and time.monotonic() < deadline:
        time.sleep(0.01)


def main():
    moment("before-import")
    import torch
    import torch.distributed

    moment("after-import")
    kind, _, value = ACT.partition(":")
    given = torch.arange(8.0) * (RANK + 1)
    if kind == "at-exit-dist":
        atexit.register(leave_late)
    if WHEN == "at-exit":
        atexit.register(moment, "at-exit")
    for life in range(int(value) if kind == "lives" else 1):
        live(life, given)
    os.write(1, f"rank {RANK} finished\n".encode())  # in one piece, beside other processes
    with open(f"out-{RANK}.new", "w") as out:
        print(given.tolist(), file=out)
    os.rename(f"out-{RANK}.new", f"out-{RANK}")


def live(life, given):
    import torch.distributed as dist

    moment("before-init")
    size = int(os.environ["WORLD_SIZE"])
    shares = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=not shares and RANK == 0 and life == 0,
    )
    kept.append(store)
    store = dist.PrefixStore(f"life-{life}", store)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=size)
    keep(dist.group.WORLD)
    moment("after-init")
    first = dist.new_group(list(range(size)), group_desc="first")
    keep(first)
    moment("between-groups")
    second = dist.new_group(list(range(size)), group_desc="second")
    keep(second)
    for group in (None, first, second):
        dist.all_reduce(given, group=group)
        given /= 3
    aside = threading.Thread(target=keep_reducing, args=(second,))
    aside.start()
    moment("during-collective")
    aside.join()
    more(given)
    dist.all_reduce(given)
    moment("before-destroy")
    dist.barrier()
    if ACT != "at-exit-dist":
        dist.destroy_process_group()
    moment("after-destroy")


kept = []
"""Stores, of which the first serves all."""


def keep(group):
    if ACT in ("fork-leaves", "fork-raises"):
        import acts

        acts.kept_groups.append(group)


def keep_reducing(group):
    import torch
    import torch.distributed as dist

    for _ in range(STEPS):
        dist.all_reduce(torch.ones(4), group=group)


def more(given):
    """What some acts are about: groups, and threads that use them."""
    import acts

    kind, _, value = ACT.partition(":")
    if kind == "groups":
        acts.many_groups(int(value), given)
    elif kind == "threads":
        acts.threads_of_groups(value, given)


def leave_late():
    """What a program does that leaves its groups to the end."""
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
