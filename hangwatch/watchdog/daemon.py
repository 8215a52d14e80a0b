"""Puts the watchdog together and runs it."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hangwatch.console import News
from hangwatch.diagnosis import diagnose
from hangwatch.efficiency.straggler_watch import StragglerWatch
from hangwatch.errors import HangwatchError, ReportError
from hangwatch.evidence.exits import Exits
from hangwatch.evidence.gpu.reader import Gpus
from hangwatch.evidence.pages.finder import Pages
from hangwatch.evidence.stacks import PySpy
from hangwatch.metrics.gpu import gpu_metrics
from hangwatch.model.report import Note, Stragglers
from hangwatch.report.runs import write_log, write_run
from hangwatch.run import handshake, rundir, shared_run
from hangwatch.run.handshake import Hello
from hangwatch.run.shared_run import CONCLUDED
from hangwatch.run.test_hooks import Point, reach
from hangwatch.safety.faultlog import log_fault, logged, open_log
from hangwatch.safety.texts import readable
from hangwatch.watchdog import timing
from hangwatch.watchdog.announcer import Announcer
from hangwatch.watchdog.gpus import GpuWatch
from hangwatch.watchdog.incident.evidence import Gatherer
from hangwatch.watchdog.incident.judge import Judge
from hangwatch.watchdog.incident.reporter import Reporter
from hangwatch.watchdog.monitor import Monitor
from hangwatch.watchdog.peers.comparison import Comparison
from hangwatch.watchdog.profiles import Profiler
from hangwatch.watchdog.straggler_reporter import StragglerReporter
from hangwatch.watchdog.stragglers import StragglerLook
from hangwatch.watchdog.telemetry import Telemetry

MAX_LINE_BYTES = 1 << 20


class Supervisor:
    """The supervisor's end of the pipe on standard input (run/handshake.py)."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.asked_to_end_ns = 0
        """When the command that has ended was asked to, 0 if it was not."""

    @classmethod
    async def connect(cls) -> Supervisor:
        """Read standard input in the event loop."""
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        return cls(reader)

    async def hello(self) -> Hello | None:
        """Read the first line; None if the supervisor is gone.

        Raises ValueError or HangwatchError for a line that makes no sense.
        """
        line = await self._reader.readline()
        return handshake.parse(line) if line else None

    async def ended(self) -> int | None:
        """Return the exit code of the command once it ended; None if the supervisor is gone."""
        while line := await self._reader.readline():
            message = json.loads(line)
            if isinstance(message, dict) and "ended" in message:
                self.asked_to_end_ns = int(message.get("asked_to_end_ns", 0))
                return int(message["ended"])
        return None


async def all_ended(run_dir: Path) -> int | None:
    """Return the exit code of a shared run once all its commands have ended.

    None if their supervisors are gone.
    """
    found = shared_run.commands(run_dir)
    while any(command.running for command in found):
        await asyncio.sleep(timing.COMMANDS_POLL_S)
        found = shared_run.commands(run_dir)
    return shared_run.overall_exit_code(found)


async def serve(stderr_fd: int, notes: tuple[str, ...] = ()) -> int:
    """Watch the run that the supervisor names on standard input; return the exit code.

    stderr_fd: the job's standard error. notes: printed with -v only.
    """
    pipe = await Supervisor.connect()
    try:
        hello = await pipe.hello()
    except (ValueError, HangwatchError) as error:
        News(stderr_fd).say(f"the watchdog does not understand the supervisor: {error!r}")
        return 1
    if hello is None:
        return 0
    news = News(stderr_fd, verbose=hello.config.verbose)
    news.run_dir = hello.run_dir
    _keep_tracebacks(news)
    news.restore((), hello.lost, {"supervisor": len(hello.lost)} if hello.lost else {})
    if hello.config.verbose:
        os.dup2(stderr_fd, sys.stderr.fileno())
    for note in notes:
        news.debug(note)
    try:
        return await _watch(hello, pipe, news, stderr_fd)
    except Exception as error:  # noqa: BLE001 (the supervisor starts another one, and says so)
        log_fault(hello.run_dir, "the watchdog itself", error)
        return 1


def _keep_tracebacks(news: News) -> None:
    """Keep the tracebacks of failures that nothing awaits: of tasks, threads and crashes."""

    def in_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        news.fault("loop", f"a task of the watchdog failed ({type(error).__name__})", error)

    def in_thread(failed: threading.ExceptHookArgs) -> None:
        error = failed.exc_value or failed.exc_type()
        news.fault("thread", f"a thread of the watchdog failed ({type(error).__name__})", error)

    asyncio.get_running_loop().set_exception_handler(in_loop)
    threading.excepthook = in_thread
    if news.run_dir is not None:
        with suppress(OSError):
            faulthandler.enable(open_log(news.run_dir))  # for crashes in C


async def _watch(hello: Hello, pipe: Supervisor, news: News, stderr_fd: int) -> int:
    node = readable(socket.gethostname())
    exits = Exits()
    pages = Pages(hello.run_dir, news, ended=exits.ended)
    gpus = GpuWatch(Gpus("" if hello.config.gpu else "--no-gpu"), news)
    py_spy = PySpy(hello.config.stacks)
    gatherer = Gatherer(
        pages=pages,
        exits=exits,
        py_spy=py_spy,
        news=news,
        node=node,
        commands=hello.commands,
        gpus=gpus.by_rank,
        on_gpus=lambda: gpus.findings,
    )
    reporter = Reporter(hello.facts.report_dir, news, hello.config.hook, stderr_fd)
    judge = Judge(hello, gatherer, reporter, news, diagnose, node)
    telemetry = Telemetry(hello, news, node, [lambda: gpu_metrics(gpus.gpus.node())])
    stragglers = StragglerLook(
        hello=hello,
        news=news,
        announcer=Announcer(
            hello=hello,
            news=news,
            reporter=StragglerReporter(reporter),
            node=node,
            profiler=Profiler(py_spy, hello.run_dir),
            watch=StragglerWatch(hello.config.straggler_window_s),
        ),
        compare=judge.peers.compare,
    )
    judge.peers.comparison = Comparison(stragglers.tell, stragglers.find, stragglers.heard)
    monitor = Monitor(
        hello=hello,
        news=news,
        pages=pages,
        exits=exits,
        judge=judge,
        telemetry=telemetry,
        gpus=gpus,
        stragglers=stragglers,
    )
    telemetry.open()
    try:
        return await _watch_to_the_end(monitor, pipe)
    finally:
        telemetry.close()


async def _watch_to_the_end(monitor: Monitor, pipe: Supervisor) -> int:
    hello, news, reporter = monitor.hello, monitor.news, monitor.judge.reporter
    concluded = hello.run_dir / CONCLUDED
    with suppress(OSError):
        concluded.unlink(missing_ok=True)
    ended = asyncio.ensure_future(all_ended(hello.run_dir) if hello.facts.shared else pipe.ended())
    reach(Point.WATCHING)
    exit_code = await monitor.watch(ended)
    if exit_code is None:
        # The supervisor is gone, and with it the watch. A rank that has started the watch itself
        # leaves the pages to the next one (launch/standalone.py).
        if not hello.self_started:
            await _tidy_up(hello.run_dir)
        return 0
    monitor.exits.asked_to_end_ns = pipe.asked_to_end_ns
    deadline = time.monotonic() + timing.CONCLUDE_S
    try:
        await asyncio.wait_for(monitor.conclude(exit_code), timing.CONCLUDE_S)
    except TimeoutError as error:
        what = f"the post-mortem of the job was not done within {timing.CONCLUDE_S:g} s"
        news.fault("conclude", what, error, quiet=True)
    except Exception as error:  # noqa: BLE001 (what is known so far is to be kept)
        news.fault("conclude", f"the post-mortem of the job has failed: {error!r}", error)
    if monitor.reports_notes:
        reporter.notes(monitor.notes)
    await monitor.stragglers.settle()
    stragglers = monitor.stragglers.conclude()
    slow_ranks = monitor.stragglers.announcer.reporter
    slow_ranks.conclude(stragglers)
    _leave_run_file(hello, news, exit_code, monitor.notes, stragglers)
    with suppress(OSError):
        concluded.touch(mode=0o600)
    reach(Point.CONCLUDED)
    for last in stragglers.found[-1:]:
        await slow_ranks.ended(last)
    await reporter.finish(max(0.0, deadline - time.monotonic()))
    await monitor.close()
    return 0


async def _tidy_up(run_dir: Path) -> None:
    """Remove the directory of a supervisor that was killed.

    The kernel may close its end of the pipe well before it releases its lock.
    """
    deadline = time.monotonic() + timing.LOCK_RELEASE_S
    with suppress(OSError):
        while not rundir.remove_abandoned(run_dir) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(timing.POLL_S)


def _leave_run_file(
    hello: Hello, news: News, exit_code: int, notes: tuple[Note, ...], stragglers: Stragglers
) -> None:
    report_dir = hello.facts.report_dir
    if report_dir is None:
        return
    try:
        write_run(
            report_dir,
            hello.run,
            watch=hello.facts.watch,
            duration_s=hello.elapsed_s(),
            exit_code=exit_code,
            lost=news.lost,
            notes=notes,
            stragglers=stragglers,
        )
        if log := logged(hello.run_dir):
            write_log(report_dir, log)
    except ReportError as error:
        news.lose("report-dir", str(error))
    except Exception as error:  # noqa: BLE001 (the supervisor then leaves one)
        news.fault("run-file", f"run.json could not be made: {error!r}", error)
