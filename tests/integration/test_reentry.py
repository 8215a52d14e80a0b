"""Whatever strikes amid our own doing, the program goes on as without us, and is recorded."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from agent_runs import calls, group_of, run, unwatched
from harness import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 30
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_handlers_and_finalizers_may_do_what_we_are_at(recorder: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / "reentered.py"), str(ROUNDS)]
    result = run(command, tmp_path / "run", recorder=recorder, environ=RANK)
    bare = subprocess.run(  # noqa: S603 (our own program)
        command, env=unwatched({}), capture_output=True, text=True, check=False
    )
    assert (result.exit_code, result.stdout) == (0, bare.stdout)
    assert bare.returncode == 0
    assert result.notes == []
    (page,) = result.pages
    assert (page.swallowed, page.disarmed, page.in_call) == (0, "", "")
    last = group_of(page, "the last one")
    assert (last.alive, last.entered, len(calls(page, last))) == (True, 3, 3)
    assert sum(group.alive for group in page.groups) == 2


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_what_a_handler_raises_always_reaches_the_program(recorder: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / "interrupted.py"), "1"]
    result = run(command, tmp_path / "run", recorder=recorder, environ=RANK)
    assert result.exit_code == 0
    raised, seen, number = (int(word) for word in result.stdout.split())
    assert raised == seen >= 30
    (page,) = result.pages
    assert (page.swallowed, page.disarmed, page.in_call) == (0, "", "")
    after = group_of(page, "after all")
    assert after.entered == 1
    interrupted = group_of(page, "interrupted")
    assert interrupted.enqueued == number
    # Each call that c10d got is counted once; one more where the exception struck behind it.
    assert number <= interrupted.entered <= number + 1
