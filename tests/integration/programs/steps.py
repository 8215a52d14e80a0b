"""Goes through steps of an all_reduce each: steps.py STEPS [RANK STEP]...

A rank that is named stays before that step until there is a file ``go-STEP`` beside
the working directories of the hosts, and raises what is written there, if anything is.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from assembled import assemble


def load_batch(step):
    """What the step trains on."""
    if (dist.get_rank(), step) in STAYS:
        while not (order := Path(f"../go-{step}")).exists():
            time.sleep(0.05)  # culprit
        if message := order.read_text():
            raise ValueError(message)
    return torch.ones(4)


STEPS, *STAYS = map(int, sys.argv[1:])
STAYS = set(zip(STAYS[::2], STAYS[1::2], strict=True))

assemble(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "..")
dist.init_process_group("gloo")
for step in range(STEPS):
    dist.all_reduce(load_batch(step))  # victim
    time.sleep(0.02)
dist.destroy_process_group()
