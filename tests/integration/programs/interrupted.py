"""Interrupts itself again and again, and counts what it did and what it saw of that."""

import signal
import sys
import time

import torch
import torch.distributed as dist


class Alarm(Exception):
    pass


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0], group_desc="interrupted")
number_of = torch.distributed.distributed_c10d.ProcessGroup._get_sequence_number_for_group
raised = seen = 0


def handler(_number, _frame):
    global raised
    raised += 1
    raise Alarm


signal.signal(signal.SIGALRM, handler)
until = time.monotonic() + float(sys.argv[1])
gap = 2e-4
while time.monotonic() < until or raised < 30:
    gap = 2e-4 if gap > 2e-3 else gap * 1.07
    try:
        signal.setitimer(signal.ITIMER_REAL, gap)
        another = dist.new_group([0])
        while True:
            dist.all_reduce(torch.ones(1), group=group)
            dist.all_reduce(torch.ones(1), group=another)
    except Alarm:
        seen += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(raised, seen, number_of(group))
dist.all_reduce(torch.ones(1), group=dist.new_group([0], group_desc="after all"))
