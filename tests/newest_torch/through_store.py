"""Runs a program whose name ``gloo`` stands for another backend, as ``nccl`` does since torch 2.15.

    through_store.py PROGRAM [ARGUMENT...]

The backend is that of store_backend.cpp, built in the directory STORE_BACKEND. Its own name is
STORE_BACKEND_NAME; with STORE_BACKEND_SILENT it does not tell which of its calls are complete.
Another one of the kind is registered as ``second``.
"""

from __future__ import annotations

import os
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

sys.path.insert(0, os.environ["STORE_BACKEND"])
import store_backend  # type: ignore[import-not-found]  # (built by the test)

SILENT = "STORE_BACKEND_SILENT" in os.environ


def made(name: str, store: Any, rank: int, size: int, _timeout: Any) -> Any:
    return store_backend.made(store, rank, size, name, not SILENT)


# As torch does where it registers nccl2 for nccl.
distributed_c10d._FR_SELF_RECORDING_BACKENDS.discard("gloo")  # noqa: SLF001 (no other way)
dist.Backend.register_backend(
    "gloo", partial(made, os.environ["STORE_BACKEND_NAME"]), devices=["cpu"]
)
dist.Backend.register_backend("second", partial(made, "second"), devices=["cpu"])
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
