"""A picture of a run: the rows of its ranks, and a sentence on how it is doing.

Nothing in the run's directory is written, and none of its processes is asked for anything.
Source files are read without waiting: they may lie on the mount that the job hangs on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hangwatch.commands.runs import Run, RunPages, is_active
from hangwatch.commands.top import incident, straggler
from hangwatch.commands.top.incident import IncidentState, StoredReport
from hangwatch.commands.top.rows import RankTracker, Row, Trouble, known_rates, rate_text
from hangwatch.evidence import sources
from hangwatch.evidence.pages.look import Look
from hangwatch.model.calls import Site
from hangwatch.model.frames import line_of
from hangwatch.model.report import Straggler
from hangwatch.text import counted, duration


class SourceLines:
    """Lines of the user's files, each file read once by a thread of its own.

    started_s: seconds of the epoch; the lines of a file that has changed since are wrong.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._texts: dict[str, str] = {}
        self._asked: set[str] = set()

    def of(self, site: Site, pid: int) -> str | None:
        """Return the line of a site of a process, None if it is not read, or not yet."""
        if site.file not in self._asked and len(self._asked) < sources.MAX_FILES:
            self._asked.add(site.file)
            threading.Thread(target=self._read, args=(site.file, pid), daemon=True).start()
        return line_of(self._texts, site.file, site.line)

    def _read(self, file: str, pid: int) -> None:
        self._texts.update(sources.read({file: pid}, self._started_s))


@dataclass(frozen=True, slots=True)
class Picture:
    """A run at one moment."""

    run: Run
    at: float
    """Seconds of the epoch."""
    rows: tuple[Row, ...]
    state: str
    """``HANG (likely)``, ``waiting``, ``going on``, ..."""
    summary: str
    """One sentence: the verdict on the current incident, a straggler, or what the pages show."""
    alarming: bool
    """True if that is a verdict."""
    slowed: bool
    """True if it is a straggler."""
    report: Path | None
    """Directory of the report of the current incident or straggler."""
    notes: tuple[str, ...]
    """Evidence that could not be had, and what else is worth a line."""

    @property
    def age_s(self) -> float:
        """Age of the run, 0 if unknown."""
        started_s = self.run.started_s
        return max(0.0, self.at - started_s) if started_s else 0.0


class RunView:
    """Takes pictures of one run; a context manager."""

    def __init__(
        self,
        run: Run,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.run = run
        self._now = now
        self._pages = RunPages(run.path, now_ns)
        self._ranks = RankTracker(self._pages.state)
        self._lines = SourceLines(run.started_s or now())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pages.close()

    def picture(self) -> Picture:
        """Return the run as it is now."""
        look = self._pages.look()
        now = self._now()
        rows = self._ranks.rows(look)
        current = incident.read_state(self.run.path)
        report = incident.read_report(current)
        if report is not None:
            rows = incident.with_report(rows, report, now)
        rows = [self._with_line(row) for row in rows]
        state, summary = incident.headline(current, report)
        where = report.directory if report else None
        slow = straggler.read_straggler(self.run.path) if look.waits and not state else None
        if slow is not None:
            state, summary = straggler.headline(slow)
            rows = straggler.with_straggler(rows, slow)
            where = self._report_of(slow)
        elif not state:
            state, summary = _progress(look, rows)
        return Picture(
            run=self.run,
            at=now,
            rows=tuple(rows),
            state=state,
            summary=summary,
            alarming=current.ongoing,
            slowed=slow is not None,
            report=where,
            notes=tuple(self._notes(current, report, rows, now)),
        )

    def ending(self) -> str:
        """Return how the run ended, for people; empty while it is active."""
        if is_active(self.run):
            return ""
        facts = self.run.facts
        how, incidents = incident.ending(facts.report_dir, facts.watch) if facts else ("", 0)
        if how:
            where = f"; see hangwatch report {facts.report_dir}" if facts and incidents else ""
            return f"the run has ended, {how}, {counted(incidents, 'incident')}{where}"
        if living := len(self._pages.look().waits):
            still = f"{counted(living, 'rank')} still {'runs' if living == 1 else 'run'}"
            return f"the supervisor is gone; {still}, unwatched"
        return "the run has ended; its exit code is not known"

    def _report_of(self, slow: Straggler) -> Path | None:
        facts = self.run.facts
        return straggler.report_of(slow, facts.report_dir) if facts and facts.report_dir else None

    def _with_line(self, row: Row) -> Row:
        if row.site is None or row.site.source is not None or row.node:
            return row
        return replace(row, site=replace(row.site, source=self._lines.of(row.site, row.pid)))

    def _notes(
        self, current: IncidentState, report: StoredReport | None, rows: Sequence[Row], now: float
    ) -> Iterator[str]:
        yield from self._pages.unreadable
        yield from (f"cannot instrument a rank: {reason}" for reason in self._pages.unrecorded)
        facts = self.run.facts
        if facts is None:
            yield "no supervisor has described this run"
        elif not self.run.path.is_dir():
            yield "the directory of this run was deleted; the last pages are shown"
        if report is not None:
            if any(row.node for row in rows):
                age = duration(now - report.written)
                yield f"the ranks of other nodes: from the report, {age} ago"
        elif current.incidents and not current.ongoing and facts and facts.report_dir:
            before = counted(current.incidents, "incident")
            yield f"{before} before, now over: hangwatch report {facts.report_dir}"


def _progress(look: Look, rows: Sequence[Row]) -> tuple[str, str]:
    """Return state and summary, as the pages alone show them."""
    if not look.seen:
        return "no ranks yet", "no rank has used torch.distributed yet"
    living = len(look.waits)
    if not living:
        return "ended", "all its ranks here have ended"
    waiting = [row for row in rows if row.trouble is Trouble.WAITS]
    if waiting:
        longest_s = max(row.waits_s or 0.0 for row in waiting)
        late = sum(row.trouble is Trouble.LATE for row in rows)
        summary = f"{counted(len(waiting), 'rank')} of {len(look.seen)} here for "
        summary += duration(longest_s) + (f"; {counted(late, 'rank')} late" if late else "")
        return "waiting", summary
    speeds = known_rates(rows)
    if not speeds:
        return "begun", f"{counted(living, 'rank')} here, none seen for long enough"
    if not any(speeds):
        return "quiet", "no rank waits, and no collective is issued"
    speed = rate_text(min(speeds), max(speeds))
    return "going on", f"{counted(living, 'rank')} here, {speed} calls/s each"
