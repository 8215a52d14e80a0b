"""A job that stalls at a gate, recovers, and may stall again elsewhere.

STALL stays away until there is a file ``release``; the others wait for it in WAIT_IN:
an all_reduce of the world, one of the group pair, a receive or a barrier. Then all go on
for some steps and each makes a file ``recovered-RANK``. With AGAIN=RANK that rank then
stays away until there is a file ``release-again``. At last all go round until there is
a file ``finish``.

ON_TERM is what a rank does of a SIGTERM: it ends of it, or releases the stall and goes on,
or ignores it. That and when it came is kept in ``signalled-RANK``, written by a thread: the
main one may wait in C++, where no handler of Python's runs.
"""

import os
import signal
import socket
import threading
import time

import torch
import torch.distributed as dist

STEPS = 5
STALL = int(os.environ["STALL"])
AGAIN = int(os.environ.get("AGAIN", "-1"))
WAIT_IN = os.environ.get("WAIT_IN", "world")
AGAIN_IN = os.environ.get("AGAIN_IN", "pair")
ON_TERM = os.environ.get("ON_TERM", "end")


def main():
    rank = int(os.environ["RANK"])
    heed_term(rank)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    pair = dist.new_group(list(range(size)), group_desc="pair")
    out = open(f"out-{rank}", "w", buffering=1)
    state = torch.arange(64, dtype=torch.float64) * (rank + 1)
    steps(state, pair, size, out)
    mark(f"ready-{rank}")
    go_round_until("gate", rank)
    stall("release", STALL, rank, WAIT_IN, pair)
    steps(state, pair, size, out)
    mark(f"recovered-{rank}")
    if AGAIN >= 0:
        stall("release-again", AGAIN, rank, AGAIN_IN, pair)
        steps(state, pair, size, out)
    go_round_until("finish", rank)
    steps(state, pair, size, out)
    print("end", state.sum().item(), file=out)
    out.close()
    dist.destroy_process_group()
    os.write(1, f"rank {rank} finished\n".encode())


def heed_term(rank):
    ours, theirs = socket.socketpair()
    theirs.setblocking(0)
    signal.set_wakeup_fd(theirs.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)

    def listen():
        while data := ours.recv(1):
            mark(f"signalled-{rank}")
            if ON_TERM == "end" and data[0] == signal.SIGTERM:
                os._exit(128 + signal.SIGTERM)
            if ON_TERM == "go on":
                open("release", "w").close()

    # Kept by the thread for as long as the rank lives.
    threading.Thread(target=listen, daemon=True).start()
    heed_term.kept = theirs


def mark(name):
    """Make a file that tells when (CLOCK_MONOTONIC, s); the first time counts."""
    if not os.path.exists(name):
        with open(f"{name}.new", "w") as file:
            file.write(str(time.monotonic()))
        os.rename(f"{name}.new", name)


def steps(state, pair, size, out):
    for step in range(STEPS):
        dist.all_reduce(state)
        dist.all_reduce(state, group=pair)
        state /= size * size * 1.5
        print(step, state.sum().item(), file=out)


def stall(until, who, rank, where, pair):
    """Have one rank stay away from where the others wait for it."""
    if rank == who:
        while not os.path.exists(until):
            time.sleep(0.01)
    else:
        mark(f"waits-{until}-{rank}")
    if where == "recv":
        other = torch.zeros(1)
        if rank == who:
            for peer in range(dist.get_world_size()):
                if peer != who:
                    dist.send(other, peer)
        else:
            dist.recv(other, who)
    elif where == "barrier":
        dist.barrier()
    else:
        dist.all_reduce(torch.zeros(8), group=pair if where == "pair" else None)


def go_round_until(name, rank):
    going = torch.ones(1)
    while going.item():
        going.fill_(rank > 0 or not os.path.exists(name))
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
        time.sleep(0.01)


main()
