"""What the native wrappers record of real torch agrees with what torch records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import RECORDED

NEEDS_RECORDER = pytest.mark.skipif(not RECORDED, reason="this torch has no recorder for gloo")
PROGRAMS = Path(__file__).parent / "native"


def run(*words: str | Path) -> str:
    done = subprocess.run(  # noqa: S603 (our own programs)
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@NEEDS_RECORDER
def test_places_signatures_and_sites_agree_on_one_rank() -> None:
    assert "rank 0 is good" in run(PROGRAMS / "collectives.py")


@NEEDS_RECORDER
def test_places_signatures_and_sites_agree_on_three_ranks() -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    output = run(*torchrun, PROGRAMS / "collectives.py")
    for rank in range(3):
        assert f"rank {rank} is good" in output


def test_compiled_graphs_and_subclasses_work_as_without_us() -> None:
    assert run(PROGRAMS / "compiled.py").endswith("good\n")


def test_tensors_are_looked_at_without_their_noticing() -> None:
    assert run(PROGRAMS / "tensors.py").endswith("good\n")
