"""Beacons on a real GPU: what they tell, and which rank is named by them."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Result, environment, reaches, watch

from hangwatch import _native

pytestmark = [pytest.mark.gpu]
HERE = Path(__file__).parent
PROGRAM = HERE.parent / "integration" / "programs" / "on_gpu.py"
QUICK = ("--suspect-after", "4", "--hang-after", "10", "--metrics-addr", "off")
SEVERAL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Lets ranks share a GPU; NCCL 2.30 and later."""


@pytest.fixture(scope="module", autouse=True)
def torch() -> Any:
    """Torch, on a machine where it finds a device."""
    found: Any = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    return found


@pytest.mark.parametrize(
    "case",
    [
        "stuck_before",
        "stuck_behind",
        "streams",
        "graph",
        "compiled",
        "many",
        "barrier",
        "recorder",
    ],
)
def test_on_nccl_with_one_rank(case: str) -> None:
    done = subprocess.run(  # noqa: S603 (the program beside this)
        [sys.executable, str(HERE / "one_rank.py"), case],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment({"TORCH_FR_BUFFER_SIZE": "2000"}),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


def test_this_machine_has_what_beacons_need() -> None:
    devices, why = _native.examine_beacons()
    assert (devices > 0, why) == (True, "")


def nccl_version() -> int:
    """Of the library that is loaded, 23000 for 2.30; torch tells what it was built with."""
    version = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return version.value


def needs_shared_gpu(torch: Any, backend: str) -> dict[str, str]:
    """The environment in which ranks share a GPU. Skips where NCCL cannot have them do so."""
    if backend == "gloo" or torch.cuda.device_count() > 1:
        return {}
    if nccl_version() < 23000:
        pytest.skip(f"NCCL {nccl_version()} has one rank a GPU")
    return SEVERAL


def run(torch: Any, backend: str, fault: str, tmp_path: Path) -> Result:
    """Two ranks, until a verdict is there."""
    end = tmp_path / "end"
    return watch(
        PROGRAM,
        *QUICK,
        arguments=(backend, fault, str(end)),
        nproc=2,
        env=needs_shared_gpu(torch, backend),
        until=reaches("hang"),
        bound_s=240.0,
    )


backends = pytest.mark.parametrize("backend", ["gloo", "nccl"])


@backends
def test_the_rank_with_the_stuck_kernel_is_named(torch: Any, backend: str, tmp_path: Path) -> None:
    found = run(torch, backend, "kernel", tmp_path)
    verdict = found.reports[-1]["verdict"]
    assert (verdict["culprits"], verdict["victims"]) == ([1], [0])
    assert (verdict["kind"], verdict["reason"]) == ("never_entered", "gpu_kernel")
    (group,) = found.reports[-1]["ranks"][1]["groups"]
    assert group["started"] < group["enqueued"]


@backends
def test_a_rank_whose_program_is_late_has_no_stuck_kernel(
    torch: Any, backend: str, tmp_path: Path
) -> None:
    verdict = run(torch, backend, "program", tmp_path).reports[-1]["verdict"]
    assert verdict["culprits"] == [1]
    assert (verdict["kind"], verdict["reason"]) == ("never_entered", "user_code")


@backends
def test_a_healthy_job_comes_to_its_end(torch: Any, backend: str, tmp_path: Path) -> None:
    end = tmp_path / "end"
    end.touch()
    found = watch(
        PROGRAM,
        *QUICK,
        arguments=(backend, "nothing", str(end)),
        nproc=2,
        env=needs_shared_gpu(torch, backend),
    )
    assert (found.exit_code, found.reports) == (0, [])


def test_torch_tells_the_stream_that_is_current() -> None:
    torch = importlib.import_module("torch")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        handle = torch._C._cuda_getCurrentRawStream(0)  # noqa: SLF001 (as the agent)
        assert handle == side.cuda_stream
