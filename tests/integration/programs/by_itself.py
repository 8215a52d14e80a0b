"""A rank that is started by itself, and knows its number from RANK or from its arguments alone.

It steps until there is a file ``stop``. Rank 1 keeps the others waiting while there is ``hold``,
and rank 0 exits where there is ``leave``.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from assembled import assemble

rank = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
world_size = int(os.environ.get("WORLD_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"])
assemble(rank, world_size)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    where = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
    dist.init_process_group("gloo", init_method="tcp://" + where, rank=rank, world_size=world_size)
over = torch.zeros(1)
while not over.item():
    if rank == 0 and Path("leave").exists():
        sys.exit(5)  # the first to go
    while rank == 1 and Path("hold").exists():
        time.sleep(0.05)  # culprit
    over.fill_(rank == 0 and Path("stop").exists())
    dist.all_reduce(over)
    Path(f"ran-{rank}").touch()
    time.sleep(0.05)
dist.destroy_process_group()
