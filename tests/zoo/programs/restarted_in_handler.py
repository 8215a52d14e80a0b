"""Ranks begin anew within their processes after a time-out; then one fails of its own."""
# launched with --nproc-per-node=3
# expect: state=failed kind=died reason=exception certainty=proved culprits=1 victims=0,2
# expect: site=culprit op=all_reduce exit=1 text=ValueError

import datetime as dt
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist


def live(number, seconds):
    path = Path(tempfile.gettempdir(), f"lives-{os.environ['MASTER_PORT']}-{number}")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=dt.timedelta(seconds=seconds),
    )
    for step in range(100):
        if dist.get_rank() == 1 and step == 20:
            if number == 0:
                time.sleep(2 * seconds)
            else:
                raise ValueError("bad label")  # culprit
        dist.all_reduce(torch.ones(8))


def main():
    try:
        live(0, 4)
    except RuntimeError as error:
        print("begins anew after", error)
        dist.destroy_process_group()
        live(1, 120)


if __name__ == "__main__":
    main()

# cause: process_gone at `raise ValueError("bad label")`
