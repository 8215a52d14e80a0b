"""A job that comes to a gate, waits there at work, and goes on when it is opened.

Up to the gate and behind it each rank takes a number of steps in the world and in a group
of its own; what they give is printed, line by line as the launcher may end a rank or let it
fail, and is the same in each run. At the gate the ranks go round together until there
is a file ``gate``. With STALL=RANK that rank then stays away until there is a file ``release``:
all others wait for it. With ANEW=1 the calls behind the gate stand in another file, so that all
that names them is new.
"""

import os
import sys
import time
import types

import torch
import torch.distributed as dist

STEPS = int(os.environ.get("STEPS", "10"))
STALL = int(os.environ.get("STALL", "-1"))


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    pair = dist.new_group(list(range(size)), group_desc="pair")
    out = open(f"out-{rank}", "w", buffering=1)
    state = torch.arange(64, dtype=torch.float64) * (rank + 1)
    state = steps(state, pair, rank, size, out)
    with open(f"pid-{rank}", "w") as file:
        file.write(str(os.getpid()))
    open(f"ready-{rank}", "w").close()
    at_the_gate(rank)
    if rank == STALL:
        stay_away()
    behind = renamed(steps) if os.environ.get("ANEW") == "1" else steps
    state = behind(state, pair, rank, size, out)
    print("end", state.sum().item(), file=out)
    out.close()
    dist.destroy_process_group()
    # In one piece, also where standard output is not buffered: others write there too.
    sys.stdout.write(f"rank {rank} finished\n")
    sys.stdout.flush()


def steps(state, pair, rank, size, out):
    for step in range(STEPS):
        dist.all_reduce(state)
        state /= size * 1.5
        other = torch.full((8,), float(rank + step))
        dist.all_reduce(other, group=pair)
        dist.broadcast(other, 0)
        if rank < 2:
            if rank:
                dist.recv(other, 0)
            else:
                dist.send(other, 1)
        print(step, state.sum().item(), other.sum().item(), file=out)
    return state


def at_the_gate(rank):
    going = torch.ones(1)
    while going.item():
        going.fill_(rank > 0 or not os.path.exists("gate"))
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
        time.sleep(0.01)


def renamed(function):
    return types.FunctionType(function.__code__.replace(co_filename="anew.py"), globals())


def stay_away():
    open("stalled", "w").close()
    while not os.path.exists("release"):
        time.sleep(0.01)


main()
