"""Waits for all ranks to have loaded torch: on a slow machine they differ by seconds."""

import os
import time
from pathlib import Path


def assemble():
    """Return once every rank has come here; the working directories lie side by side."""
    Path(f"../rank-{os.environ['RANK']}").touch()
    while len(list(Path("..").glob("rank-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)
