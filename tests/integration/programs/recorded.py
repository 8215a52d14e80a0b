"""A job of four ranks that gets stuck, and leaves its own Flight Recorder dumps.

Arguments: what is wrong (stall, skip), the directory of the dumps, and the backend whose
recorder is dumped where that is not gloo. Once every rank has written its dumps, pickled and
JSON, all of them end.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
from torch.distributed.device_mesh import init_device_mesh

fault, where = sys.argv[1], Path(sys.argv[2])
OF = {"backend": sys.argv[3]} if sys.argv[3:] else {}
STEPS = 5
STALLS_AT = 3
stalled = threading.Event()


def step(number, rank, mesh):
    if fault == "stall" and rank == 2 and number == STALLS_AT:
        stalled.set()
        threading.Event().wait()
    dist.all_reduce(torch.ones(4), group=mesh["tp"].get_group())
    dist.all_reduce(torch.ones(4), group=mesh["dp"].get_group())
    if not (fault == "skip" and rank == 1 and number == STALLS_AT):
        dist.all_reduce(torch.ones(8))
    dist.broadcast(torch.ones(8), 0)


def dump_when_stuck(rank):
    """Write the dumps once this rank is stuck, and end once all have."""
    while not (stalled.is_set() or waits()):
        time.sleep(0.05)
    pickled = _dump_fr_trace(
        includeCollectives=True, includeStackTraces=True, onlyActive=False, **OF
    )
    write(where / f"rank_{rank}.pkl", pickled)
    write(where / f"rank_{rank}.json", as_json())
    while len(list(where.glob("rank_*.json"))) < dist.get_world_size():
        time.sleep(0.05)
    os._exit(0)


def waits():
    """Whether something has been unfinished for a second, and nothing else was done."""
    seen = as_json()
    time.sleep(1)
    return b'"retired":false' in seen and seen == as_json()


def as_json():
    text = _dump_fr_trace_json(includeCollectives=True, onlyActive=False, **OF)
    return text if isinstance(text, bytes) else text.encode()


def write(path, data):
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(data)
    fresh.rename(path)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    threading.Thread(target=dump_when_stuck, args=(rank,), daemon=True).start()
    try:
        for number in range(STEPS):
            step(number, rank, mesh)
    except RuntimeError:  # a rank whose dumps are written may have ended before
        threading.Event().wait()


if __name__ == "__main__":
    main()
