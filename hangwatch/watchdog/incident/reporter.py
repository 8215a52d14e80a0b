"""Tells people: keeps the report, prints the verdict, runs the hook."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hangwatch.console import News
from hangwatch.errors import ReportError
from hangwatch.evidence.threads import in_thread
from hangwatch.model.report import Evidence, Moment, Note
from hangwatch.model.verdict import Verdict
from hangwatch.report.build import build_report, notes_content
from hangwatch.report.files import write_incident
from hangwatch.report.schema import Report
from hangwatch.report.terminal import Style, format_notes, format_verdict
from hangwatch.run.test_hooks import Point, reach
from hangwatch.safety.faultlog import logged
from hangwatch.watchdog.incident.actions import hook_variables, run_hook
from hangwatch.watchdog.incident.incidents import Announce
from hangwatch.watchdog.peers.messages import Published

BUILD_S = 30.0
"""A report of a hundred thousand ranks takes some seconds to build."""
WRITE_S = 8.0
"""A report directory that takes longer is on a file system that hangs."""


@dataclass(slots=True)
class Reporter:
    """Writes into ``report_dir``; None where nothing can be written at all."""

    report_dir: Path | None
    news: News
    hook: str
    stderr_fd: int
    report: Path | None = None
    """Directory of the incident at hand."""
    last: Evidence | None = None
    """What was reported last, for what is to be added to it."""
    hooks: set[asyncio.Task[None]] = field(default_factory=set)
    elsewhere: dict[str, str] | None = None
    """What the watchdog of another node has found last, for `hangwatch top`."""

    async def verdict(self, evidence: Evidence, *, same_incident: bool) -> None:
        """Keep and print a verdict. same_incident: it takes the place of the last report."""
        report = await self._built(evidence)
        self.report = await self._write(evidence, report, self.report if same_incident else None)
        self.last = evidence
        reach(Point.REPORTED)
        self._print(evidence.verdicts[0], report)
        if self.hook:
            told = hook_variables(evidence, self.report)
            task = asyncio.ensure_future(run_hook(self.hook, self.report, told, self.news))
            self.hooks.add(task)
            task.add_done_callback(self.hooks.discard)

    async def follow_up(self, announce: Announce, what: str) -> None:
        """Print one line about the incident at hand, and add it to its report."""
        self.news.say(what)
        if announce is not Announce.RECOVERED or self.last is None or self.report is None:
            return
        timeline = (*self.last.timeline, Moment(utc_now(), f"{what[0].upper()}{what[1:]}."))
        self.last = replace(self.last, timeline=timeline)
        await self._write(self.last, await self._built(self.last), self.report)

    def remote(self, published: Published) -> None:
        """Print what the watchdog of another node has found, in one line, as told by that."""
        verdict = published.verdicts[0]
        report = published.report
        where = (
            f" (report on {published.node}: {report})"
            if report
            else f" (told by node {published.node})"
        )
        self.news.say(f"{verdict.state.upper()} {verdict.headline}{where}")
        self.elsewhere = {
            "headline": verdict.headline,
            "node": published.node,
            "report": published.report,
        }

    def notes(self, notes: Sequence[Note]) -> None:
        """Print what the job did at a cost; nothing where that is nothing."""
        lines = format_notes(notes_content(notes), _style(self.stderr_fd))
        self.news.write("".join(f"{line}\n" for line in lines))

    async def finish(self, timeout_s: float) -> None:
        """Wait for hooks; one that takes longer goes on without us."""
        if self.hooks:
            await asyncio.wait(self.hooks, timeout=timeout_s)

    def export(self) -> dict[str, Any]:
        """Plain values for restore()."""
        return {"report": str(self.report) if self.report else "", "elsewhere": self.elsewhere}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over the report of the incident at hand. Raises KeyError."""
        self.report = Path(str(values["report"])) if values["report"] else None
        self.elsewhere = values.get("elsewhere")

    def _print(self, main: Verdict, report: Report | None) -> None:
        try:
            if report is not None:
                lines = format_verdict(report, self.report, _style(self.stderr_fd))
                self.news.write("".join(f"{line}\n" for line in lines))
                return
        except Exception as error:  # noqa: BLE001 (what is known is to be told all the same)
            self.news.fault("terminal", f"the verdict cannot be shown in full: {error!r}", error)
        self.news.say(f"{main.state.upper()} ({main.certainty}) {main.headline}")

    async def _built(self, evidence: Evidence) -> Report | None:
        """What is kept and shown of an incident, None where making it has failed."""
        try:
            return await in_thread(lambda: build_report(evidence), BUILD_S)
        except Exception as error:  # noqa: BLE001 (the verdict is to be printed all the same)
            self.news.fault("report", f"the report could not be made: {error!r}", error)
        return None

    async def _write(
        self, evidence: Evidence, report: Report | None, before: Path | None
    ) -> Path | None:
        directory = self.report_dir
        if directory is None or report is None:
            return None
        lost: list[str] = []
        logging = replace(evidence, log=logged(self.news.run_dir))
        try:
            path = await in_thread(
                lambda: write_incident(
                    directory, logging, report=report, replace=before, lost=lost
                ),
                WRITE_S,
            )
        except ReportError as error:
            self.news.lose("report-dir", str(error))
        except Exception as error:  # noqa: BLE001 (the verdict is to be printed all the same)
            if isinstance(error, TimeoutError):
                self.news.lose("report-dir", f"the report is not written after {WRITE_S:g} s")
            else:
                self.news.fault("report", f"the report cannot be written: {error!r}", error)
        else:
            for what in lost:
                self.news.lose("page", what)
            return path
        return None


def utc_now() -> str:
    """Now, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _style(fd: int) -> Style:
    """How to print on a file descriptor."""
    with os.fdopen(os.dup(fd), "w") as stream:
        return Style.of(stream, os.environ)
