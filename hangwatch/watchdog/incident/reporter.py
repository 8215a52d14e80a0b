"""Reports an incident: keeps its account, writes the report, prints the verdict, runs the hook."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

from hangwatch.console import News, printable
from hangwatch.diagnosis.facts.gpu_faults import meaning
from hangwatch.errors import ReportError
from hangwatch.evidence import environment
from hangwatch.evidence.background import Tasks, Worker, in_thread
from hangwatch.model.report import (
    Evidence,
    Moment,
    Note,
    RasAnswer,
    RunInfo,
)
from hangwatch.model.snapshot import JobSnapshot
from hangwatch.model.verdict import Verdict
from hangwatch.report.build import build_report, notes_content
from hangwatch.report.files import write_incident
from hangwatch.report.schema import Report
from hangwatch.report.terminal import (
    Style,
    format_notes,
    format_verdict,
)
from hangwatch.run.test_hooks import Point, reach
from hangwatch.safety.faultlog import logged
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident.evidence import Collected
from hangwatch.watchdog.incident.stages import Announce
from hangwatch.watchdog.peers.messages import Published

HOOK_CULPRITS = 1000
"""Culprits that a hook is given at most: an environment has bounds (execve(2))."""
_OUTPUT_BYTES = 4096
MAX_ERRORS = 32
"""Lines of the timeline about errors of GPUs."""
_IN_FLIGHT = re.compile(rb'"(?:comm_lib|nccl)_version": ?"(\d[\w.+-]{0,30})"')
"""NCCL's version in a Flight Recorder, from PyTorch 2.8 on and before."""


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
class StoredAt:
    """A stored report."""

    path: Path | None = None
    """Its directory, once a write has ended."""


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
    _files: StoredAt = field(default_factory=StoredAt)
    _last: Evidence | None = None
    """The evidence of the last report."""
    _hooks: Tasks = field(default_factory=Tasks)
    _writer: Worker | None = None

    async def verdict(self, evidence: Evidence, *, same_incident: bool) -> None:
        """Keep and print a verdict. same_incident: it replaces the last report."""
        report = await self._built(evidence)
        if not same_incident:
            self._files = StoredAt()
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
        self.print_lines(format_notes(notes_content(notes), self.style()))

    async def finish(self, timeout_s: float) -> None:
        """Wait for hooks; one that takes longer goes on by itself."""
        await self._hooks.settle(timeout_s)

    def export(self) -> SavedReporter:
        """Return the state for restore()."""
        return SavedReporter(str(self.report) if self.report else "", self.elsewhere)

    def restore(self, saved: SavedReporter) -> None:
        """Take over the report of the incident at hand."""
        self.report = Path(saved.report) if saved.report else None
        self._files, self.elsewhere = StoredAt(self.report), saved.elsewhere

    def _print(self, main: Verdict, report: Report | None) -> None:
        try:
            if report is not None:
                self.print_lines(format_verdict(report, self.report, self.style()))
                return
        except Exception as error:  # noqa: BLE001 (the headline is to be printed all the same)
            self.news.fault("terminal", f"the verdict cannot be shown in full: {error!r}", error)
        self.news.say(f"{main.state.upper()} ({main.certainty}) {main.headline}")

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print a block."""
        self.news.write("".join(f"{line}\n" for line in lines))

    def style(self) -> Style:
        """Return the width and colour of the job's standard error."""
        with os.fdopen(os.dup(self.stderr_fd), "w") as stream:
            return Style.of(stream, os.environ)

    async def _built(self, evidence: Evidence) -> Report | None:
        """Return the report of an incident, None if making it has failed."""
        try:
            return await in_thread(lambda: build_report(evidence), timing.REPORT_BUILD_S)
        except Exception as error:  # noqa: BLE001 (the verdict is to be printed all the same)
            self.news.fault("report", f"the report could not be made: {error!r}", error)
        return None

    async def _write(self, evidence: Evidence, report: Report | None) -> Path | None:
        """Store the report of the incident at hand; return its directory, None if that failed."""
        if report is None:
            return None
        whole = replace(evidence, log=logged(self.news.run_dir))
        return await self.keep(partial(write_incident, evidence=whole, report=report), self._files)

    async def keep(self, write: Callable[..., Path], files: StoredAt) -> Path | None:
        """Store a report; return its directory, None if that failed.

        write: write_incident(), or one like it. One thread makes all writes: one that timed out is
        never overtaken by the next, which then replaces what it has written.
        """
        if self.report_dir is None:
            return None
        if self._writer is None:
            self._writer = Worker("hangwatch-report")
        lost = list[str]()
        store = partial(write, self.report_dir, lost=lost)

        def stored() -> Path:
            files.path = path = store(replaced=files.path)
            return path

        try:
            path = await self._writer.run(stored, timing.REPORT_WRITE_S)
        except ReportError as error:
            self.news.lose("report-dir", str(error))
        except TimeoutError:
            text = f"the report is not written after {timing.REPORT_WRITE_S:g} s"
            self.news.lose("report-dir", text)
        except Exception as error:  # noqa: BLE001 (what was found is to be printed all the same)
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
    command: str, report: Path | None, variables: Mapping[str, str], news: News
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
            await asyncio.wait_for(process.wait(), timing.HOOK_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            late = f"not done after {timing.HOOK_S:g} s, it was killed"
            news.lose("hook", f"--hook {command}: {late}")
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


@dataclass(frozen=True, slots=True)
class Judged:
    """One diagnosis with its evidence. ``round``: of the exchange, 0 for none."""

    verdicts: tuple[Verdict, ...]
    job: JobSnapshot
    collected: Collected
    round: int = 0
    ras: RasAnswer | None = None
    read_ns: int = 0
    """Beginning of the gathering (CLOCK_MONOTONIC)."""


@dataclass(frozen=True, slots=True)
class Detection:
    """First announcement of an incident: when, and how long after it began."""

    detected_at: str = ""
    """Empty before the first announcement."""
    detected_after_s: float = 0.0


@dataclass(slots=True)
class Account:
    """State of an incident from one announcement to the next."""

    run: RunInfo
    detection: Detection = Detection()
    _timeline: list[Moment] = field(default_factory=list)
    # The last that were known: of ranks that have ended there are none.
    _versions: dict[str, str] = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)
    _ras: RasAnswer | None = None
    _ras_at: str = ""

    @property
    def is_open(self) -> bool:
        """True if something has been announced."""
        return bool(self.detection.detected_at)

    def add(self, announce: Announce, verdict: Verdict) -> None:
        """Note an announcement."""
        if not self.is_open:
            self.detection = Detection(utc(), verdict.stuck_age_s)
            if verdict.waits:
                self._timeline.append(Moment(utc(verdict.stuck_age_s), "The longest wait begins."))
        self._timeline.append(Moment(utc(), f"{announce.upper()}: {verdict.headline}"))

    def evidence(self, judged: Judged, lost: Sequence[str]) -> Evidence:
        """Return the content of the report. lost: what hangwatch could not do."""
        pid = next((r.pid for r in judged.collected.ranks if r.process.alive), 0)
        if pid or not self._versions:
            self._versions = environment.versions(pid)
            self._environment = environment.job_environment(pid)
        if judged.ras is not None:
            self._ras, self._ras_at = judged.ras, utc()
        versions = self.run.versions | self._versions
        if nccl := _nccl_version(self._ras, judged.collected.flights.values()):
            versions["NCCL"] = nccl
        lines = (*_gpu_errors(judged.job), *_ras_lines(self._ras, self._ras_at))
        return Evidence(
            run=replace(self.run, versions=versions),
            job=judged.job,
            verdicts=judged.verdicts,
            detected_at=self.detection.detected_at,
            detected_after_s=self.detection.detected_after_s,
            pages=judged.collected.pages,
            flights=judged.collected.flights,
            environment=self._environment,
            ras=self._ras,
            timeline=tuple(sorted((*self._timeline, *lines), key=lambda line: line.at)),
            lost=tuple(lost),
            notes=judged.collected.notes,
        )


def _nccl_version(ras: RasAnswer | None, flights: Iterable[bytes]) -> str:
    """Return the version of NCCL by its own answer or by c10d's recorder; empty if unknown."""
    if ras is not None and ras.version:
        return ras.version
    version = next((match for raw in flights if (match := _IN_FLIGHT.search(raw))), None)
    return version[1].decode("ascii", "replace") if version else ""


def _ras_lines(ras: RasAnswer | None, at: str) -> Iterator[Moment]:
    """Yield the findings of NCCL's RAS service."""
    if ras is None:
        return
    who = f"NCCL {ras.version}".strip()
    findings = [f"{finding}." for finding in ras.findings]
    if not ras.complete:
        findings.append("it did not answer in full.")
    elif not findings:
        findings.append("all ranks answer and have launched the same; it does not look at GPUs.")
    for finding in findings:
        yield Moment(at, f"RAS of {who}: {finding}")


def _gpu_errors(job: JobSnapshot) -> Iterator[Moment]:
    """Yield the last report of each kind of error of a GPU by the driver, at its first rank."""
    errors = {
        (rank.node, rank.gpu.uuid, xid.number): (rank, rank.gpu, xid)
        for rank in reversed(job.ranks)
        if rank.gpu is not None
        for xid in rank.gpu.xids
    }
    for rank, gpu, xid in islice(errors.values(), MAX_ERRORS):
        at = utc(min(max(0.0, xid.age_s), timing.XID_AGE_MOST_S))
        times = f", {xid.count} times by now" if xid.count > 1 else ""
        what = f"Xid {xid.number} of GPU {gpu.index}: it {meaning(xid.number).what}{times}."
        yield Moment(at, what, rank.rank)
