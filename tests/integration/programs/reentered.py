"""Has handlers and finalizers make, use and destroy groups while the program does the same."""

import gc
import random
import signal
import sys
import time

import torch
import torch.distributed as dist

rounds = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
random.seed(7)
gc.freeze()  # what torch consists of need not be looked through again and again
made, sums, armed, fired = [], [], True, 0


def reduced(group):
    tensor = torch.ones(1)
    # Not dist.all_reduce: pybind11 refuses to convert its operator while it converts one,
    # as it may where a finalizer strikes.
    group.allreduce([tensor]).wait()
    return let_go(tensor).item()


def let_go(tensor):
    # A thread of gloo's does so a moment after the wait. If it is the last that has the tensor,
    # and the interpreter ends in that moment, torch aborts: 1 of 30 programs like this one.
    while tensor._use_count() > 1:
        time.sleep(1e-4)
    return tensor


class Holder:
    """Destroys its group when the garbage collector finds it."""

    def __init__(self):
        self.group = dist.new_group([0])
        self.itself = self

    def __del__(self):
        sums.append(reduced(self.group))
        dist.destroy_process_group(self.group)


def rearm():
    if armed:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 3e-3))


def handler(_number, _frame):
    global fired
    fired += 1
    if len(made) > 2:
        group = made.pop(0)
        sums.append(reduced(group))
        dist.destroy_process_group(group)
    rearm()


signal.signal(signal.SIGALRM, handler)
rearm()
for number in range(rounds):
    gc.set_threshold(1 + number % 5)
    made.append(dist.new_group([0]))
    sums.append(reduced(made[-1]))
    Holder()
armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
gc.set_threshold(700)
gc.collect()
while made:
    dist.destroy_process_group(made.pop())
print(fired > 0, set(sums))
last = dist.new_group([0], group_desc="the last one")
for _ in range(3):
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=last)
    let_go(tensor)
