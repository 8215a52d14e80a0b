"""Profiles of ranks: what a straggler does, and what another rank does in the same seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hangwatch.efficiency.reasons import explain
from hangwatch.evidence import sources
from hangwatch.evidence.cgroups import throttled_ns
from hangwatch.evidence.processes import PROC, delay_ns
from hangwatch.evidence.stacks import PySpy
from hangwatch.model.frames import is_user_frame, marked
from hangwatch.model.page import RankPage
from hangwatch.model.profile import Profile
from hangwatch.model.report import Why
from hangwatch.watchdog import timing


@dataclass(frozen=True, slots=True)
class Profiled:
    """A rank to profile."""

    page: RankPage
    thread: int
    """Native id of the thread that trains."""
    waits: float
    """As Profile.waits."""


@dataclass(frozen=True, slots=True)
class Profiler:
    """Takes profiles by py-spy."""

    py_spy: PySpy
    run_dir: Path
    proc: str = PROC

    async def why(self, slow: Profiled, like: Profiled, cost: float, seconds: int) -> Why:
        """Return why a rank takes longer than another one, as far as some seconds show it.

        cost: as of explain(). Raises EvidenceError if the ranks cannot be profiled.
        """
        profiles = await self._profiles((slow, like), seconds)
        texts = await self._sources(profiles, (slow.page, like.page))
        return explain(profiles[0], profiles[1], cost, texts)

    async def _profiles(self, ranks: Sequence[Profiled], seconds: int) -> list[Profile]:
        before = [self._kept_ns(one) for one in ranks]
        began_ns = time.monotonic_ns()
        pids = [one.page.identity.pid for one in ranks]
        records = (self.py_spy.record(pid, seconds, self.run_dir) for pid in pids)
        found = await asyncio.gather(*records, return_exceptions=True)
        passed_ns = time.monotonic_ns() - began_ns
        profiles = []
        for one, samples, since in zip(ranks, found, before, strict=True):
            if isinstance(samples, BaseException):
                raise samples
            who = one.page.identity
            stacks = (replace(at, frames=marked(at.frames, who.program)) for at in samples)
            delay, throttled = (
                max(until_ns - since_ns, 0) / passed_ns
                for since_ns, until_ns in zip(since, self._kept_ns(one), strict=True)
            )
            profiles.append(
                Profile(who.rank, who.pid, one.thread, tuple(stacks), delay, throttled, one.waits)
            )
        return profiles

    async def _sources(
        self, profiles: Iterable[Profile], pages: Iterable[RankPage]
    ) -> dict[str, str]:
        """The texts of the user's files that profiles name, as far as they can be had."""
        files = {
            frame.file: profile.pid
            for profile in profiles
            for one in profile.samples
            for frame in one.frames
            if is_user_frame(frame)
        }
        age_ns = time.monotonic_ns() - min(page.created_ns for page in pages)
        started_at = time.time() - age_ns / 1e9
        texts, _ = await sources.read_in_time(files, started_at, timing.SOURCES_S, self.proc)
        return texts

    def _kept_ns(self, one: Profiled) -> tuple[int, int]:
        """For how long its thread has waited for a CPU, and a limit has kept its container.

        0 where the kernel does not count it.
        """
        pid = one.page.identity.pid
        return delay_ns(pid, one.thread, self.proc), throttled_ns(pid, self.proc)
