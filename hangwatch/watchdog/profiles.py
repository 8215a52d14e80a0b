"""Profiles of ranks: what a straggler does, and what another rank does in the same seconds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from hangwatch.efficiency.line_shares import shares_by_line
from hangwatch.efficiency.reasons import explain
from hangwatch.errors import EvidenceError
from hangwatch.evidence import sources
from hangwatch.evidence.cgroups import throttled_ns
from hangwatch.evidence.processes import PROC, cpu_ns
from hangwatch.evidence.stacks import PySpy
from hangwatch.model.frames import is_user_frame, marked
from hangwatch.model.page import RankPage
from hangwatch.model.profile import Profile, ThreadShares
from hangwatch.model.report import Why
from hangwatch.watchdog import timing


@dataclass(frozen=True, slots=True)
class Profiled:
    """A rank to profile."""

    page: RankPage
    thread: int
    """Native id of the thread that trains."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What two profiles show."""

    why: Why
    threads: tuple[ThreadShares, ...] = ()
    """Of both ranks, side by side."""
    profiles: tuple[Profile, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    """File to its text."""


@dataclass(frozen=True, slots=True)
class Profiler:
    """Takes profiles by py-spy."""

    py_spy: PySpy
    run_dir: Path
    proc: str = PROC

    async def take_both(self, one: Profiled, other: Profiled, seconds: int) -> list[Profile]:
        """Profile two ranks in the same seconds. Raises EvidenceError if that cannot be."""
        takes = (self.take(rank, seconds) for rank in (one, other))
        profiles = await asyncio.gather(*takes, return_exceptions=True)
        for profile in profiles:
            if isinstance(profile, BaseException):
                raise profile
        return profiles  # type: ignore[return-value]

    async def take(self, one: Profiled, seconds: int) -> Profile:
        """Profile a rank. Raises EvidenceError if that cannot be."""
        before = self._spent_ns(one)
        began_ns = time.monotonic_ns()
        who = one.page.identity
        samples = await self.py_spy.record(who.pid, seconds, self.run_dir)
        passed_ns = time.monotonic_ns() - began_ns
        cpu, delay, throttled = (
            max(until_ns - since_ns, 0) / passed_ns
            for since_ns, until_ns in zip(before, self._spent_ns(one), strict=True)
        )
        stacks = tuple(replace(at, frames=marked(at.frames, who.program)) for at in samples)
        return Profile(who.rank, who.pid, one.thread, stacks, delay, cpu, throttled)

    async def compare(self, page: RankPage, slow: Profile, like: Profile, cost: float) -> Explained:
        """Do what explain() does for a rank of another node, whose files may be others.

        Raises EvidenceError if they are.
        """
        if _files_of(slow).isdisjoint(_files_of(like)):
            raise EvidenceError(f"rank {slow.rank} runs no file that rank {like.rank} runs")
        return await self.explain(page, slow, like, cost)

    async def explain(self, page: RankPage, slow: Profile, like: Profile, cost: float) -> Explained:
        """Return why a rank takes longer than another one, as far as these profiles show it.

        page: of the slow one, a rank of this node. cost: as of explain() of reasons.py.
        """
        started_at = time.time() - (time.monotonic_ns() - page.created_ns) / 1e9
        files = dict.fromkeys(_files_of(slow) | _files_of(like), slow.pid)
        texts, _ = await sources.read_in_time(files, started_at, timing.SOURCES_S, self.proc)
        why = explain(slow, like, cost, texts)
        threads = shares_by_line(slow, like, why.thread, texts)
        return Explained(why, threads, (slow, like), texts)

    def _spent_ns(self, one: Profiled) -> tuple[int, int, int]:
        """For how long its thread has had a CPU, has waited for one, and a limit has kept it off.

        0 where the kernel does not count it.
        """
        pid = one.page.identity.pid
        return *cpu_ns(pid, one.thread, self.proc), throttled_ns(pid, self.proc)


def _files_of(profile: Profile) -> set[str]:
    """The files of the user's code that it names."""
    return {frame.file for one in profile.samples for frame in one.frames if is_user_frame(frame)}
