"""The ranks of a node by their pages: who runs, and how the others ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from made_pages import page, write
from waiting import BOUND_S, until

from hangwatch.agent.environment import CARRIED, packed
from hangwatch.agent.inject.rank import start_ticks
from hangwatch.errors import UsageError
from hangwatch.evidence.local_ranks import LocalRanks, launcher_of
from hangwatch.launch.command import Signals
from hangwatch.launch.standalone import StandaloneSupervisor, find_settings
from hangwatch.model.kinds import Phase
from hangwatch.run import rundir
from hangwatch.run.handshake import to_other_nodes
from hangwatch.run.shared_run import WATCH
from hangwatch.settings.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Ranks:
    """Processes that have pages in a directory, and end as they are told."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.found = LocalRanks(where)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, rank: int, **changes: Any) -> subprocess.Popen[str]:
        code = "import sys; sys.exit(int(sys.stdin.readline()))"
        process = subprocess.Popen(  # noqa: S603 (our own Python)
            [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        own = {"pid": process.pid, "start_ticks": start_ticks(process.pid), **changes}
        write(self.where, page(rank, **own))
        return process

    def until_ended(self) -> None:
        until(lambda: not self.found.look(), "the end of all ranks")


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str], code: int) -> None:
    assert process.stdin
    process.stdin.write(f"{code}\n")
    process.stdin.flush()


def test_they_run_until_the_last_has_ended(ranks: Ranks) -> None:
    one, two = ranks.start(0), ranks.start(1)
    assert ranks.found.look()
    tell(one, 0)
    ranks.found.wait(BOUND_S)
    assert ranks.found.look()
    assert ranks.found.pids() == [two.pid]
    tell(two, 0)
    ranks.until_ended()
    assert ranks.found.exit_code() == 0


def test_the_exit_code_is_that_of_the_first_to_fail(ranks: Ranks) -> None:
    well, killed, late = (ranks.start(rank) for rank in range(3))
    assert ranks.found.look()
    tell(well, 0)
    killed.send_signal(signal.SIGKILL)
    until(lambda: ranks.found.look() and killed.pid not in ranks.found.pids(), "its end")
    tell(late, 7)
    ranks.until_ended()
    assert ranks.found.exit_code() == 128 + signal.SIGKILL


def test_what_failed_before_a_restart_that_ended_well_counts_no_more(ranks: Ranks) -> None:
    before = ranks.start(0)
    assert ranks.found.look()
    tell(before, 3)
    ranks.until_ended()
    assert ranks.found.exit_code() == 3
    after = ranks.start(0, restart=1)
    assert ranks.found.look()
    tell(after, 0)
    ranks.until_ended()
    assert ranks.found.exit_code() == 0


@pytest.mark.parametrize(("phase", "code"), [(Phase.EXITED, 0), (Phase.RUNNING, 1)])
def test_of_one_that_was_gone_before_anybody_looked_its_page_tells(
    tmp_path: Path, phase: Phase, code: int
) -> None:
    write(tmp_path, page(0, phase=phase))  # its start time is nobody's
    found = LocalRanks(tmp_path)
    assert not found.look()
    assert found.exit_code() == code


def test_what_is_no_page_yet_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "r0-0-1.page").write_bytes(b"half of it")
    assert not LocalRanks(tmp_path).look()


def test_a_run_that_follows_inherits_nothing(ranks: Ranks) -> None:
    over = ranks.start(0)
    held = rundir.RunDir(ranks.where, -1, shared=True)
    supervisor = StandaloneSupervisor(held, {}, over.pid, Signals(set(), None))
    assert supervisor.ranks.look()
    tell(over, 0)
    over.wait(BOUND_S)
    new = ranks.start(1)
    for name in (rundir.LOCK, WATCH, "job.json", "state.json", "concluded", "agent-7.err"):
        (ranks.where / name).touch()
    supervisor.forget_ended_job()
    left = {path.name for path in ranks.where.iterdir()}
    assert left == {rundir.LOCK, WATCH, f"r0-1-{new.pid}.page"}
    assert supervisor.rank_pid == new.pid


def test_a_launcher_is_a_python_and_a_shell_is_none(tmp_path: Path) -> None:
    assert launcher_of(os.getpid(), str(tmp_path)) == os.getpid()
    stat = " ".join(["S", "6", *map(str, range(5, 60))])
    for pid, program in ((7, "/usr/bin/python3.11"), (6, "/usr/bin/python3.11")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) {stat}\n")
        (tmp_path / str(pid) / "exe").symlink_to(program)
    assert launcher_of(7, str(tmp_path)) == 6
    (tmp_path / "6" / "exe").unlink()
    (tmp_path / "6" / "exe").symlink_to("/usr/sbin/slurmstepd")
    assert launcher_of(7, str(tmp_path)) == 7


def test_the_settings_of_a_supervisor_elsewhere_come_before_variables(tmp_path: Path) -> None:
    word = packed(to_other_nodes(Config(hang_after_s=7.0), "night", tmp_path))
    config, run_id = find_settings({CARRIED: word, "HANGWATCH_HANG_AFTER": "9"})
    assert (config.hang_after_s, run_id) == (7.0, "night")
    config, run_id = find_settings({"HANGWATCH_HANG_AFTER": "9", "HANGWATCH_RUN_ID": "day"})
    assert (config.hang_after_s, run_id) == (9.0, "day")
    with pytest.raises(UsageError):
        find_settings({"HANGWATCH_HANG_AFTER": "soon"})
