"""Runs a program whose name ``gloo`` stands for another backend, as ``nccl`` does since torch 2.15.

    through_store.py PROGRAM [ARGUMENT...]

The backend is that of store_backend.cpp, built in the directory STORE_BACKEND. Its own name is
STORE_BACKEND_NAME; with STORE_BACKEND_SILENT it does not tell which of its calls are complete.
Another one of the kind is registered as ``second``. With STORE_BACKEND_DEVICE tensors lie on a
simulated device, whose backend it is, and ``gloo`` is that of the host beside it.
"""

from __future__ import annotations

import os
import runpy
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

sys.path.insert(0, os.environ["STORE_BACKEND"])
import store_backend  # type: ignore[import-not-found]  # (built by the test)

NAME = os.environ["STORE_BACKEND_NAME"]
MIXED = f"cpu:gloo,sim:{NAME}"
SILENT = "STORE_BACKEND_SILENT" in os.environ


def made(name: str, store: Any, rank: int, size: int, _timeout: Any) -> Any:
    return store_backend.made(store, rank, size, name, not SILENT)


def use_device() -> None:
    """Tensors lie on the simulated device where nothing else is said, as on a GPU."""
    torch.utils.rename_privateuse1_backend("sim")
    device = ModuleType("torch.sim")
    device.__dict__.update(
        current_device=lambda: 0,
        device_count=lambda: 1,
        is_available=lambda: True,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _seed: None,
        synchronize=lambda _device=None: None,
    )
    torch._register_device_module("sim", device)  # noqa: SLF001 (there is no other way)
    torch.set_default_device("sim")


def mixed(
    make: Any, size: int, rank: int, ranks: list[int], backend: str, *rest: Any, **more: Any
) -> Any:
    """Where a program says ``gloo``: that on the host, and another on the device."""
    return make(size, rank, ranks, MIXED if backend == "gloo" else backend, *rest, **more)


if "STORE_BACKEND_DEVICE" in os.environ:
    use_device()
    dist.Backend.register_backend(
        NAME,
        partial(made, NAME),
        devices=["sim"],
        # What counts the calls of the group, as where the device is a GPU.
        _backend_type=dist.ProcessGroup.BackendType.NCCL,
    )
    distributed_c10d._new_process_group_helper = partial(  # noqa: SLF001 (there is no other way)
        mixed,
        distributed_c10d._new_process_group_helper,  # noqa: SLF001
    )
else:
    # As torch does where it registers nccl2 for nccl.
    distributed_c10d._FR_SELF_RECORDING_BACKENDS.discard("gloo")  # noqa: SLF001 (no other way)
    dist.Backend.register_backend("gloo", partial(made, NAME), devices=["cpu"])
    dist.Backend.register_backend("second", partial(made, "second"), devices=["cpu"])
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
