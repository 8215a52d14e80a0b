"""What a target of the Makefile prints of its parts, and what a soak counts."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import gate

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = """
good:
	@echo good is made
bad:
	@false
killed:
	@kill -9 $$PPID
# What pytest leaves: somebody late in each second round.
late:
	@mkdir -p build/late
	@if rm build/odd 2>/dev/null; then echo '{"late": ["a test"]}' >build/late/answers.jsonl; \\
	else touch build/odd; fi
"""


def made(where: Path, *words: str) -> tuple[int, list[str]]:
    """Exit code of the gate, and what it printed."""
    (where / "Makefile").write_text(MAKEFILE)
    done = subprocess.run(  # noqa: S603 (our own Python)
        [sys.executable, gate.__file__, *words],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_all_targets_are_made_and_one_that_fails_is_told(tmp_path: Path) -> None:
    code, lines = made(tmp_path, "--minutes", "3", "check", "bad", "good")
    assert code == 1
    assert "good is made" in lines
    told = [re.sub(r"[\d.]+ (s|min)", r"N \1", re.sub(" +", " ", line)) for line in lines[-3:]]
    assert told == [
        " bad N s N min of CPU FAILED with exit code 2",
        " good N s N min of CPU passed",
        "make check: 0.0 of N min, N min of CPU",
    ]


def test_of_two_that_are_made_side_by_side_both_are_made_and_one_that_fails_is_told(
    tmp_path: Path,
) -> None:
    code, lines = made(tmp_path, "check", "bad+good")
    assert code == 1
    assert "good is made" in lines
    assert "bad+good" in lines[-2]
    assert "FAILED" in lines[-2]


def test_a_target_that_is_killed_is_red(tmp_path: Path) -> None:
    assert made(tmp_path, "check", "good", "killed", "good")[0] == 1


def test_it_passes_where_all_targets_do(tmp_path: Path) -> None:
    code, lines = made(tmp_path, "check", "good")
    assert code == 0
    assert lines[-1] == "make check: 0.0 min, 0.0 min of CPU"


def test_a_soak_counts_who_was_late(tmp_path: Path) -> None:
    code, lines = made(tmp_path, "--soak", "4", "soak", "late")
    assert code == 0
    assert lines[-2:] == ["late 2 of 4: a test", "4 rounds, 0 of them red"]
    code, lines = made(tmp_path, "--soak", "2", "soak", "bad")
    assert code == 1
    assert lines[-1] == "2 rounds, 2 of them red"
