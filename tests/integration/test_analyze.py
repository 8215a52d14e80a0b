"""Dumps that PyTorch itself wrote of a real stuck job are read and judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import FORKED, environment

PROGRAM = Path(__file__).parent / "programs/recorded.py"
LATER_S = 60


def line_of(text: str) -> int:
    """Where a line of the program is."""
    lines = PROGRAM.read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture(scope="module", params=["stall", "skip"])
def dumps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of one run, as if they had been taken a minute after it got stuck."""
    fault: str = request.param
    where = tmp_path_factory.mktemp(fault)
    subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, str(FORKED), "4", str(PROGRAM), fault, str(where)],
        env=environment({"TORCH_FR_BUFFER_SIZE": "2000"}),
        capture_output=True,
        timeout=200,
        check=True,
    )
    assert len(list(where.iterdir())) == 8
    age(where)
    return where


def age(dumps: Path) -> None:
    """Make files look as if they had been written a minute later."""
    for path in dumps.iterdir():
        written = path.stat().st_mtime + LATER_S
        os.utime(path, (written, written))


def analyzed(*paths: Path) -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603 (our own command)
        [sys.executable, "-m", "hangwatch", "analyze", "--json", *map(str, paths)],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["pkl", "json"])
def test_the_rank_that_broke_a_real_job_is_named_from_its_dumps(dumps: Path, kind: str) -> None:
    report = analyzed(*sorted(dumps.glob(f"*.{kind}")))
    verdict = report["verdict"]
    stalls = dumps.name.startswith("stall")
    assert verdict["state"] == "hang"
    assert verdict["culprits"] == [2 if stalls else 1]
    assert verdict["kind"] == ("never_entered" if stalls else "op_mismatch")
    assert verdict["stuck_age_s"] >= LATER_S
    if kind == "pkl":
        waits_at = 'group=mesh["tp"]' if stalls else "dist.all_reduce(torch.ones(8))"
        assert verdict["victim_site"]["line"] == line_of(waits_at)
    if kind == "pkl" and not stalls:
        assert verdict["site"]["line"] == line_of("dist.broadcast(")


def test_a_directory_with_both_kinds_is_judged_by_what_tells_more(dumps: Path) -> None:
    report = analyzed(dumps)
    assert report["verdict"]["victim_site"] is not None
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]
