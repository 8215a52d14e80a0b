"""What the pages of watched runs say of their ranks: which they are, and what they wait in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hangwatch.commands.top import runs
from hangwatch.commands.top.ranks import Call, Processes, waited_in
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.pages.look import QUIET_S, Looker
from hangwatch.news import News


@dataclass(frozen=True, slots=True)
class Known:
    """What the page of a rank says. ``call``: what it waits in, None where it does not."""

    run: str
    rank: int
    call: Call | None
    waits_s: float


class Watched:
    """The ranks of all watched runs on this node, by pid. ``close`` it at the end."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self.pages: dict[int, Known] = {}
        """By pid."""
        self._known: set[str] = set()
        for run in runs.find(environ):
            self._read(run)

    def add(self, directories: Iterable[str]) -> None:
        """Read the pages of further runs, which their ranks have named."""
        for directory in set(directories) - self._known - {""}:
            run = runs.describe(Path(directory))
            if run.facts:
                self._read(run)

    @property
    def pids(self) -> frozenset[int]:
        """The processes that have a page and still run."""
        return frozenset(self.pages)

    def close(self) -> None:
        """Let go of everything."""
        os.close(self._nowhere)

    def _read(self, run: runs.Run) -> None:
        self._known.add(str(run.path))
        processes = Processes()
        pages = Pages(run.path, News(self._nowhere), alive=processes.alive)
        try:
            look = Looker(pages, processes.alive, time.monotonic_ns).look()
            for rank, since_ns in look.waits.items():
                seen = look.seen[rank]
                age_s = 0.0 if since_ns is None else (look.now_ns - since_ns) / 1e9
                call = waited_in(seen) if age_s >= QUIET_S else None
                self.pages[seen.light.identity.pid] = Known(run.name, rank, call, age_s)
        finally:
            pages.close()
