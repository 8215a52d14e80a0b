"""What NCCL needs where ranks share a GPU, as in tests on a machine with one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

SEVERAL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""NCCL 2.30 and later."""


def nccl_version() -> int:
    """Of the library that is loaded, 23000 for 2.30; torch tells what it was built with."""
    version = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return version.value


def torch_with_device() -> Any:
    """Torch, on a machine where it finds a device. Skips where there is none."""
    found: Any = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    return found


def needed(backend: str = "nccl") -> dict[str, str]:
    """The environment in which ranks may share a GPU. Skips where NCCL cannot have them do so."""
    torch = torch_with_device()
    if backend == "gloo" or torch.cuda.device_count() > 1:
        return {}
    if nccl_version() < 23000:
        pytest.skip(f"NCCL {nccl_version()} has one rank a GPU")
    return SEVERAL
