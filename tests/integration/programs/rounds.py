"""Steps until there is a file ``stop``; while there is ``hold``, rank 3 of 4 holds up the others.

Each rank leaves a file ``ran-WORLD_SIZE-RANK-RESTART`` once its process group is made.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from assembled import assemble

assemble(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
Path(f"ran-{world_size}-{rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
over = torch.zeros(1)
while not over.item():
    while world_size == 4 and rank == 3 and Path("hold").exists():
        time.sleep(0.05)  # culprit
    over.fill_(rank == 0 and Path("stop").exists())
    dist.all_reduce(over)
    time.sleep(0.05)
dist.destroy_process_group()
