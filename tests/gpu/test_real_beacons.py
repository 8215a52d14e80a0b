"""Beacons on a real GPU: what they tell, and which rank is named by them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import shared_gpu
from harness import Result, environment, reaches, watch

from hangwatch import _native

pytestmark = [pytest.mark.gpu]
HERE = Path(__file__).parent
PROGRAM = HERE.parent / "integration" / "programs" / "on_gpu.py"
QUICK = ("--suspect-after", "4", "--hang-after", "10", "--metrics-addr", "off")
PATIENT = ("--suspect-after", "30", "--hang-after", "60", "--metrics-addr", "off")
"""Ranks that share a GPU take ten seconds for NCCL to connect them."""


@pytest.fixture(autouse=True)
def _device() -> None:
    """Skip where torch finds none."""
    shared_gpu.torch_with_device()


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


def run(backend: str, fault: str, tmp_path: Path) -> Result:
    """Two ranks, until a verdict is there."""
    end = tmp_path / "end"
    return watch(
        PROGRAM,
        *QUICK,
        arguments=(backend, fault, str(end)),
        nproc=2,
        env=shared_gpu.needed(backend),
        until=reaches("hang"),
        bound_s=240.0,
    )


backends = pytest.mark.parametrize("backend", ["gloo", "nccl"])


@backends
def test_the_rank_with_the_stuck_kernel_is_named(backend: str, tmp_path: Path) -> None:
    found = run(backend, "kernel", tmp_path)
    verdict = found.reports[-1]["verdict"]
    assert (verdict["culprits"], verdict["victims"]) == ([1], [0])
    assert (verdict["kind"], verdict["reason"]) == ("never_entered", "gpu_kernel")
    (group,) = found.reports[-1]["ranks"][1]["groups"]
    assert group["started"] < group["enqueued"]


@backends
def test_a_rank_whose_program_is_late_has_no_stuck_kernel(backend: str, tmp_path: Path) -> None:
    verdict = run(backend, "program", tmp_path).reports[-1]["verdict"]
    assert verdict["culprits"] == [1]
    assert (verdict["kind"], verdict["reason"]) == ("never_entered", "user_code")


@backends
def test_a_healthy_job_comes_to_its_end(backend: str, tmp_path: Path) -> None:
    end = tmp_path / "end"
    end.touch()
    found = watch(
        PROGRAM,
        *PATIENT,
        arguments=(backend, "nothing", str(end)),
        nproc=2,
        env=shared_gpu.needed(backend),
    )
    assert (found.exit_code, found.reports) == (0, [])


def test_torch_tells_the_stream_that_is_current() -> None:
    torch = importlib.import_module("torch")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        handle = torch._C._cuda_getCurrentRawStream(0)  # noqa: SLF001 (as the agent)
        assert handle == side.cuda_stream
