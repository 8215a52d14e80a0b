"""Reports an incident: keeps the report, prints the verdict, runs the user's hook."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO

from hangwatch.console import News, printable
from hangwatch.errors import ReportError
from hangwatch.evidence.threads import Worker, in_thread
from hangwatch.model.report import Evidence, Moment, Note
from hangwatch.model.verdict import Verdict
from hangwatch.report.build import build_report, notes_content
from hangwatch.report.files import write_incident
from hangwatch.report.schema import Report
from hangwatch.report.terminal import Style, format_notes, format_verdict
from hangwatch.run.test_hooks import Point, reach
from hangwatch.safety.faultlog import logged
from hangwatch.watchdog.peers.messages import Published
from hangwatch.watchdog.tasks import Tasks

BUILD_S = 30.0
"""A report of a hundred thousand ranks takes some seconds to build."""
WRITE_S = 8.0
"""A report directory that takes longer is on a file system that hangs."""
HOOK_S = 60.0
HOOK_CULPRITS = 1000
"""Culprits that a hook is given at most: an environment has bounds (execve(2))."""
_OUTPUT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The last verdict of another node's watchdog, for `hangwatch top`."""

    headline: str
    node: str
    report: str


@dataclass(frozen=True, slots=True)
class SavedReporter:
    """The part of a Reporter that outlives its watchdog."""

    report: str
    """Directory of the incident at hand; empty without one."""
    elsewhere: Elsewhere | None


@dataclass(slots=True)
class _Files:
    """The stored report of one incident."""

    path: Path | None = None
    """Its directory, once a write has come to its end."""


@dataclass(slots=True)
class Reporter:
    """Writes into ``report_dir``; None if nothing can be written at all."""

    report_dir: Path | None
    news: News
    hook: str
    stderr_fd: int
    report: Path | None = None
    """Directory of the incident at hand."""
    elsewhere: Elsewhere | None = None
    _files: _Files = field(default_factory=_Files)
    _last: Evidence | None = None
    """The evidence of the last report."""
    _hooks: Tasks = field(default_factory=Tasks)
    _writer: Worker | None = None

    async def verdict(self, evidence: Evidence, *, same_incident: bool) -> None:
        """Keep and print a verdict. same_incident: it replaces the last report."""
        report = await self._built(evidence)
        if not same_incident:
            self._files = _Files()
        self.report = await self._write(evidence, report)
        self._last = evidence
        reach(Point.REPORTED)
        self._print(evidence.verdicts[0], report)
        if self.hook:
            variables = hook_variables(evidence, self.report)
            self._hooks.start(run_hook(self.hook, self.report, variables, self.news))

    async def recovered(self, text: str) -> None:
        """Print that the incident at hand is over, and add it to its report."""
        self.news.say(text)
        if self._last is None or self._files.path is None:
            return
        timeline = (*self._last.timeline, Moment(utc(), f"{text[0].upper()}{text[1:]}."))
        self._last = replace(self._last, timeline=timeline)
        await self._write(self._last, await self._built(self._last))

    def remote(self, published: Published) -> None:
        """Print the verdict of another node's watchdog in one line."""
        verdict, node, report = published.verdicts[0], published.node, published.report
        where = f"report on {node}: {report}" if report else f"reported by node {node}"
        self.news.say(f"{verdict.state.upper()} {verdict.headline} ({where})")
        self.elsewhere = Elsewhere(verdict.headline, node, report)

    def notes(self, notes: Sequence[Note]) -> None:
        """Print the costly mistakes of the job, if there are any."""
        self._print_lines(format_notes(notes_content(notes), self._style()))

    async def finish(self, timeout_s: float) -> None:
        """Wait for hooks; one that takes longer goes on by itself."""
        await self._hooks.settle(timeout_s)

    def export(self) -> SavedReporter:
        """Return the state for restore()."""
        return SavedReporter(str(self.report) if self.report else "", self.elsewhere)

    def restore(self, saved: SavedReporter) -> None:
        """Take over the report of the incident at hand."""
        self.report = Path(saved.report) if saved.report else None
        self._files, self.elsewhere = _Files(self.report), saved.elsewhere

    def _print(self, main: Verdict, report: Report | None) -> None:
        try:
            if report is not None:
                self._print_lines(format_verdict(report, self.report, self._style()))
                return
        except Exception as error:  # noqa: BLE001 (the headline is to be printed all the same)
            self.news.fault("terminal", f"the verdict cannot be shown in full: {error!r}", error)
        self.news.say(f"{main.state.upper()} ({main.certainty}) {main.headline}")

    def _print_lines(self, lines: Iterable[str]) -> None:
        self.news.write("".join(f"{line}\n" for line in lines))

    def _style(self) -> Style:
        with os.fdopen(os.dup(self.stderr_fd), "w") as stream:
            return Style.of(stream, os.environ)

    async def _built(self, evidence: Evidence) -> Report | None:
        """Return the report of an incident, None if making it has failed."""
        try:
            return await in_thread(lambda: build_report(evidence), BUILD_S)
        except Exception as error:  # noqa: BLE001 (the verdict is to be printed all the same)
            self.news.fault("report", f"the report could not be made: {error!r}", error)
        return None

    async def _write(self, evidence: Evidence, report: Report | None) -> Path | None:
        """Store the report of the incident at hand; return its directory, None if that failed.

        One thread makes all writes: one that timed out is never overtaken by the next, which
        then replaces what it has written.
        """
        if self.report_dir is None or report is None:
            return None
        if self._writer is None:
            self._writer = Worker("hangwatch-report")
        files, lost = self._files, list[str]()
        store = partial(
            write_incident,
            self.report_dir,
            replace(evidence, log=logged(self.news.run_dir)),
            report=report,
            lost=lost,
        )

        def write() -> Path:
            files.path = path = store(replace=files.path)
            return path

        try:
            path = await self._writer.run(write, WRITE_S)
        except ReportError as error:
            self.news.lose("report-dir", str(error))
        except TimeoutError:
            self.news.lose("report-dir", f"the report is not written after {WRITE_S:g} s")
        except Exception as error:  # noqa: BLE001 (the verdict is to be printed all the same)
            self.news.fault("report", f"the report cannot be written: {error!r}", error)
        else:
            for what in lost:
                self.news.lose("page", what)
            return path
        return None


def utc(age_s: float = 0.0) -> str:
    """Return the time of so many seconds ago, as reports have it."""
    return (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat(timespec="milliseconds")


def hook_variables(evidence: Evidence, report: Path | None) -> dict[str, str]:
    """Return the variables that a hook finds in its environment; the headline is one line.

    report: the directory of the incident's report, None if it could not be written.
    """
    verdict = evidence.verdicts[0]
    return {
        "HANGWATCH_HEADLINE": printable(verdict.headline),
        "HANGWATCH_REPORT": str(report) if report else "",
        "HANGWATCH_RUN_ID": evidence.run.run_id,
        "HANGWATCH_STATE": verdict.state.value,
        "HANGWATCH_KIND": verdict.kind.value if verdict.kind else "",
        "HANGWATCH_CULPRITS": ",".join(map(str, verdict.culprits[:HOOK_CULPRITS])),
    }


async def run_hook(
    command: str,
    report: Path | None,
    variables: Mapping[str, str],
    news: News,
    timeout_s: float = HOOK_S,
) -> None:
    """Run the user's command with the report's directory as its argument.

    variables: added to its environment. Raises nothing: a failure is reported once, with the
    last line of the output. It runs in a session of its own, so that it may outlive the watchdog.
    """
    where = str(report) if report else ""
    with _output() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command),
                where,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **variables},
            )
        except (OSError, ValueError) as error:
            news.lose("hook", f"--hook {command}: it cannot be run ({error})")
            return
        reach(Point.HOOK_STARTED)
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            news.lose("hook", f"--hook {command}: not done after {timeout_s:g} s, it was killed")
            return
        if process.returncode:
            code, last = process.returncode, _last_line(output)
            news.lose("hook", f"--hook {command}: exit code {code} ({last})")


def _output() -> IO[bytes]:
    """Open a file without a name for a hook's output: unlike a pipe it outlives the watchdog."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return Path(os.devnull).open("w+b")


def _last_line(output: IO[bytes]) -> str:
    try:
        output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return "its output is lost"
    return lines[-1] if lines else "no output"
