"""Profiles of ranks, by py-spy and from /proc."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest
from made_pages import page

from hangwatch.errors import EvidenceError
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Reason
from hangwatch.model.profile import Profile, StackSamples
from hangwatch.model.snapshot import Frame
from hangwatch.watchdog.profiles import Explained, Profiled, Profiler

if TYPE_CHECKING:
    from pathlib import Path

    from hangwatch.evidence.stacks import PySpy

S = 1_000_000_000


@dataclass
class MadePySpy:
    """Sees each process at one line; meanwhile that waits for a CPU for a while."""

    at: dict[int, tuple[str, int]]
    proc: Path
    delays_s: dict[int, float] = field(default_factory=dict)
    failing: int = 0
    done: list[int] = field(default_factory=list)

    async def record(self, pid: int, seconds: int, _: Path) -> tuple[StackSamples, ...]:
        assert seconds == 5
        for step in range(2):
            await asyncio.sleep(0)
            if pid == self.failing and step == 0:
                raise EvidenceError("it may not be read")
        task = self.proc / f"{pid}/task/{pid}"
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"5 {int(self.delays_s.get(pid, 0) * S)} 7")
        self.done.append(pid)
        file, line = self.at[pid]
        return (StackSamples(pid, pid, "MainThread", (Frame(file, line, "main"),), 200),)


def ask(spy: MadePySpy, tmp_path: Path, program: str = "") -> tuple[Reason, Site | None]:
    def rank(number: int) -> Profiled:
        made = page(number, pid=700 + number)
        identity = replace(made.identity, program=program)
        return Profiled(replace(made, identity=identity), 700 + number)

    profiler = Profiler(cast("PySpy", spy), tmp_path, str(spy.proc))

    async def ask_now() -> Explained:
        slow, like = await profiler.take_both(rank(1), rank(0), 5)
        return await profiler.explain(rank(1).page, slow, replace(like, waits=0.5), 0.5)

    found = asyncio.run(ask_now())
    assert [one.rank for one in found.profiles] == [1, 0]
    return found.why.reason, found.why.site


def test_the_line_of_the_slow_one_is_told_with_its_text(tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text("import torch\nread()\n")
    spy = MadePySpy({701: (str(train), 2), 700: (str(train), 1)}, tmp_path / "proc")
    assert ask(spy, tmp_path) == (Reason.USER_CODE, Site(str(train), 2, "main", "read()"))


def test_a_program_that_is_installed_is_the_users_own(tmp_path: Path) -> None:
    package = "/v/lib/python3.11/site-packages/company/"
    spy = MadePySpy({701: (f"{package}train.py", 2), 700: ("/x.py", 1)}, tmp_path / "proc")
    assert ask(spy, tmp_path) == (Reason.UNKNOWN, None)
    again = MadePySpy(spy.at, tmp_path / "again")
    assert ask(again, tmp_path, package) == (
        Reason.USER_CODE,
        Site(f"{package}train.py", 2, "main"),
    )


def test_a_rank_that_waits_for_a_cpu_meanwhile(tmp_path: Path) -> None:
    at = {701: ("/train.py", 2), 700: ("/train.py", 1)}
    spy = MadePySpy(at, tmp_path / "proc", {701: 1000.0})
    assert ask(spy, tmp_path) == (Reason.CPU_CONTENTION, None)


def test_a_rank_of_another_node_that_runs_other_files(tmp_path: Path) -> None:
    profiler = Profiler(cast("PySpy", None), tmp_path)

    def profile(rank: int, *frames: Frame) -> Profile:
        return Profile(rank, 700, 700, (StackSamples(700, 700, "MainThread", frames, 200),))

    slow, like = profile(2, Frame("/a/train.py", 2, "main")), Frame("/a/train.py", 1, "main")
    found = asyncio.run(profiler.compare(page(2), slow, profile(0, like), 0.5))
    assert (found.why.reason, found.why.like) == (Reason.USER_CODE, 0)
    (training,) = found.threads
    assert [(one.site and one.site.line, one.share) for one in training.lines] == [
        (2, 1.0),
        (1, 0.0),
        (None, 0.0),
    ]
    for frames in ((Frame("/b/train.py", 2, "main"),), ()):
        with pytest.raises(EvidenceError, match="rank 2 runs no file that rank 0 runs"):
            asyncio.run(profiler.compare(page(2), slow, profile(0, *frames), 0.5))


def test_where_one_cannot_be_profiled_the_other_one_is_not_left_behind(tmp_path: Path) -> None:
    at = {701: ("/train.py", 2), 700: ("/train.py", 1)}
    spy = MadePySpy(at, tmp_path / "proc", failing=701)
    with pytest.raises(EvidenceError, match="may not be read"):
        ask(spy, tmp_path)
    assert spy.done == [700]
