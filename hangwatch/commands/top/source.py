"""Reads lines of source without ever waiting: they may lie on the mount that the job hangs on.

Nothing in the run's directory is written, and nobody there is asked for anything.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from hangwatch.commands.top import incident, runs
from hangwatch.commands.top.incident import Kept, StoredReport
from hangwatch.commands.top.ranks import Processes, Ranks
from hangwatch.commands.top.runs import Run
from hangwatch.commands.top.view import Row, Trouble, counted, rates, seconds
from hangwatch.console import News
from hangwatch.evidence import sources
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.pages.look import Look, Looker
from hangwatch.evidence.processes import PROC
from hangwatch.model.calls import Site
from hangwatch.model.frames import line_of


class Lines:
    """Lines of the user's files, each file read once by a thread of its own.

    started_at: seconds of the epoch; a file that has changed since then has other lines now.
    """

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._texts: dict[str, str] = {}
        self._asked: set[str] = set()

    def of(self, site: Site, pid: int) -> str | None:
        """The line of a site of a process, None where it is not read, or not yet."""
        if site.file not in self._asked and len(self._asked) < sources.MAX_FILES:
            self._asked.add(site.file)
            reading = threading.Thread(target=self._read, args=(site.file, pid), daemon=True)
            reading.start()
        return line_of(self._texts, site.file, site.line)

    def _read(self, file: str, pid: int) -> None:
        self._texts.update(sources.read({file: pid}, self._started_at))


@dataclass(frozen=True, slots=True)
class Picture:
    """A run at one moment."""

    run: Run
    at: float
    """Seconds of the epoch."""
    rows: tuple[Row, ...]
    state: str
    """``HANG (likely)``, ``waiting``, ``going on``, ..."""
    says: str
    """One sentence: the verdict on the incident at hand, else what the pages show."""
    alarming: bool
    """Whether that is a verdict."""
    report: Path | None
    """Of the incident at hand."""
    notes: tuple[str, ...]
    """What could not be seen, and what else is worth a line."""

    @property
    def age_s(self) -> float:
        """How long the run has been going on, 0 if that is not known."""
        since = began(self.run)
        return max(0.0, self.at - since) if since else 0.0


class Source:
    """One run, looked at again and again. ``close`` it at the end."""

    def __init__(
        self,
        run: Run,
        *,
        proc: str = PROC,
        now_ns: Callable[[], int] = time.monotonic_ns,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.run = run
        self._now = now
        self._proc = proc
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._news = News(self._nowhere)
        self._processes = Processes(proc)
        self._pages = Pages(run.path, self._news, alive=self._processes.alive)
        self._looker = Looker(self._pages, self._processes.alive, now_ns)
        self._ranks = Ranks(self._processes)
        self._reports = incident.Reports()
        self._lines = Lines(began(run) or now())

    def picture(self) -> Picture:
        """The run as it stands."""
        look = self._look()
        now = self._now()
        rows = self._ranks.rows(look)
        kept = incident.kept(self.run.path)
        report = self._reports.of(kept)
        if report is not None:
            rows = incident.with_report(rows, report, now)
        rows = [self._with_line(row) for row in rows]
        state, says = incident.headline(kept, report)
        if not state:
            state, says = _standing(look, rows)
        return Picture(
            run=self.run,
            at=now,
            rows=tuple(rows),
            state=state,
            says=says,
            alarming=kept.at_hand,
            report=report.where if report else None,
            notes=tuple(self._notes(kept, report, rows, now)),
        )

    def close(self) -> None:
        """Let go of the pages."""
        self._pages.close()
        os.close(self._nowhere)

    def over(self) -> str:
        """How the run ended, for people; empty while it goes on."""
        run = self.run
        if runs.going_on(run, self._proc):
            return ""
        facts = run.facts
        how, incidents = incident.ending(facts.report_dir, facts.watch) if facts else ("", 0)
        if how:
            where = f"; see hangwatch report {facts.report_dir}" if facts and incidents else ""
            return f"the run has ended, {how}, {counted(incidents, 'incident')}{where}"
        living = len(self._look().waits)
        if living:
            return f"the supervisor is gone: {counted(living, 'rank')} of it live on, unwatched"
        return "the run has ended, and nobody saw how"

    def _look(self) -> Look:
        self._processes.forget()
        look = self._looker.look()
        while self._pages.superseded:
            self._pages.advance()
            look = self._looker.look()
        return look

    def _with_line(self, row: Row) -> Row:
        if row.site is None or row.site.source is not None or row.node:
            return row
        return replace(row, site=replace(row.site, source=self._lines.of(row.site, row.pid)))

    def _notes(
        self, kept: Kept, report: StoredReport | None, rows: Sequence[Row], now: float
    ) -> Iterator[str]:
        yield from self._news.lost
        yield from (f"a rank cannot be recorded: {note}" for note in self._pages.notes().values())
        facts = self.run.facts
        if facts is None:
            yield "what this run is is not known: no supervisor has described it"
        elif not self.run.path.is_dir():
            yield "the directory of this run was deleted: what is shown are the last pages"
        if report is not None:
            if any(row.node for row in rows):
                age = seconds(now - report.written)
                yield f"the ranks of other nodes: as the report knew them {age} ago"
        elif kept.incidents and not kept.at_hand and facts and facts.report_dir:
            before = counted(kept.incidents, "incident")
            yield f"{before} before, now over: hangwatch report {facts.report_dir}"


def began(run: Run) -> float:
    """When a run began, in seconds of the epoch; 0 if that is not known."""
    try:
        return datetime.fromisoformat(run.facts.started_at).timestamp() if run.facts else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _standing(look: Look, rows: Sequence[Row]) -> tuple[str, str]:
    """What the pages alone show."""
    if not look.seen:
        return "no ranks yet", "no rank has come to torch.distributed so far"
    waiting = [row for row in rows if row.trouble is Trouble.WAITS]
    late = [row for row in rows if row.trouble is Trouble.LATE]
    living = len(look.waits)
    if not living:
        return "ended", "all its ranks here have ended"
    if waiting:
        longest = max(row.waits_s or 0.0 for row in waiting)
        says = f"{counted(len(waiting), 'rank')} of {len(look.seen)} here for {seconds(longest)}"
        if late:
            says += f"; {counted(len(late), 'rank')} late"
        return "waiting", says
    speeds = [row.rate for row in rows if row.rate is not None]
    if not speeds:
        return "begun", f"{counted(living, 'rank')} here, none seen for long enough"
    if not any(speeds):
        return "quiet", "nobody waits, and no collective is issued"
    low, high = min(speeds), max(speeds)
    return "going on", f"{counted(living, 'rank')} here, {rates(low, high)} calls/s each"
