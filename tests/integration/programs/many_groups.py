"""Makes so many groups, and hangs in the one of the given number: rank 0 does not come."""

import sys
import threading

import torch
import torch.distributed as dist

count, stuck = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
groups = [dist.new_group([0, 1], group_desc=f"group {number}") for number in range(count)]
tensor = torch.ones(4)
for _ in range(3):
    for number in (0, stuck):
        dist.all_reduce(tensor, group=groups[number])
if dist.get_rank() == 0:
    threading.Event().wait()
dist.all_reduce(tensor, group=groups[stuck])
