"""The watchdog as the supervisor starts it, beside ranks that only act."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pytest
from acting_rank import Rank
from waiting import BOUND_S, until

from hangwatch.run.handshake import Hello, RunFacts
from hangwatch.settings.config import Config, OnHang

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("hangwatch._native")


class Watchdog:
    """``python -m hangwatch.watchdog`` and what the supervisor says to it."""

    def __init__(
        self, where: Path, *, before_exec: Callable[[], object] | None = None, **settings: Any
    ) -> None:
        self.run_dir, self.report_dir = where / "run", where / "reports"
        self.run_dir.mkdir(mode=0o700, exist_ok=True)
        self.report_dir.mkdir(mode=0o700, exist_ok=True)
        self._stderr = where / "stderr"
        self._before_exec = before_exec
        facts = RunFacts(
            run_id="test",
            command=("torchrun", "train.py"),
            command_pid=os.getpid(),
            supervisor_pid=os.getpid(),
            shared=False,
            started_at="2026-01-01T00:00:00.000+00:00",
            node="here",
            report_dir=self.report_dir,
            watch="here:r1-1",
        )
        config = Config(**{"interval_s": 0.1, **settings})
        self._hello = Hello(facts, self.run_dir, config, time.monotonic_ns())
        self._start()

    def _start(self) -> None:
        with self._stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hangwatch.watchdog"],
                stdin=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=self._before_exec,  # noqa: PLW1509 (the tests have no threads)
            )
        self._send(self._hello.line())

    def kill_and_start_again(self) -> None:
        """Kill it by SIGKILL, and wait until its successor has looked once."""
        self.process.kill()
        self.process.communicate()
        before = self._kept_at_ns()
        self._start()
        until(lambda: self._kept_at_ns() > before)

    def said(self) -> str:
        return self._stderr.read_text()

    def until(self, text: str) -> str:
        """Wait until it has said this."""
        until(lambda: text in self.said() or self.process.poll() is not None)
        assert text in self.said()
        return self.said()

    def until_kept(self, key: str, value: object) -> None:
        """Wait until its state in the run directory says so."""
        until(lambda: self.kept().get(key) == value)

    def kept(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.run_dir / "watchdog.json").read_text())
        except (OSError, ValueError):
            return {}
        return {**found, "stage": found["judge"]["incidents"].get("stage", "healthy")}

    def end(self, code: int = 0) -> str:
        """Say that the command has ended; what the watchdog has said by then."""
        self._send(json.dumps({"ended": code}).encode() + b"\n")
        assert self.process.wait(BOUND_S) == 0
        return self.said()

    def report(self, number: int = 1) -> dict[str, Any]:
        path = self.report_dir / f"incident-{number:03d}" / "report.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def incidents(self) -> list[str]:
        return sorted(path.name for path in self.report_dir.glob("incident-*"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def _kept_at_ns(self) -> int:
        path = self.run_dir / "watchdog.json"
        return path.stat().st_mtime_ns if path.exists() else 0

    def _send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def pair(watchdog: Watchdog | Path, stack: ExitStack, **identity: Any) -> tuple[Rank, Rank]:
    """Two ranks that have done three collectives."""
    run_dir = watchdog.run_dir if isinstance(watchdog, Watchdog) else watchdog
    ranks = tuple(stack.enter_context(Rank(run_dir, n, **identity)) for n in (0, 1))
    for rank in ranks:
        rank.do("work 3")
    return ranks[0], ranks[1]


def test_a_healthy_job_is_never_mentioned(tmp_path: Path, stack: ExitStack) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path))
    ranks = pair(watchdog, stack)
    for _ in range(20):
        for rank in ranks:
            rank.do("work 5")
        time.sleep(0.05)
    for rank in ranks:
        rank.send("exit 0")
        rank.process.wait(BOUND_S)
    assert watchdog.end() == ""
    assert watchdog.incidents() == []
    run = json.loads((watchdog.report_dir / "run.json").read_text())
    assert (run["exit_code"], run["incidents"], run["lost"]) == (0, [], [])


def test_a_slow_rank_is_named_then_called_a_hang_then_recovers(
    tmp_path: Path, stack: ExitStack
) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path, suspect_after_s=2, hang_after_s=6))
    waiting, busy = pair(watchdog, stack)
    waiting.do("begin")
    watchdog.until("SLOW")
    report = watchdog.report()
    assert report["verdict"]["state"] == "slow"
    assert report["verdict"]["culprits"] == [1]
    assert report["verdict"]["victims"] == [0]
    assert report["verdict"]["collective"]["op"] == "all_reduce"
    stacks = [stack["frames"] for stack in report["stacks"].values()]
    assert any(frame["function"] == "_act" for frames in stacks for frame in frames)
    assert (watchdog.report_dir / "incident-001" / "pages" / "rank-1.page").exists()
    watchdog.until("HANG")
    assert watchdog.report()["verdict"]["state"] == "hang"
    busy.do("begin")
    for rank in (waiting, busy):
        rank.do("end")
    watchdog.until("the job recovered after")
    until(lambda: "The job recovered" in watchdog.report()["timeline"][-1]["what"])
    said = watchdog.end()
    assert (said.count("SLOW"), said.count("HANG"), said.count("recovered")) == (1, 1, 1)
    assert watchdog.incidents() == ["incident-001"]


@pytest.mark.parametrize(
    "before_exec",
    [
        partial(signal.pthread_sigmask, signal.SIG_BLOCK, signal.valid_signals()),
        partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN),
    ],
    ids=["blocked", "ignored"],
)
def test_stacks_are_taken_whatever_signals_it_was_started_without(
    tmp_path: Path, stack: ExitStack, before_exec: Callable[[], object]
) -> None:
    watchdog = Watchdog(tmp_path, before_exec=before_exec, suspect_after_s=2, hang_after_s=60)
    stack.enter_context(watchdog)
    waiting, _ = pair(watchdog, stack)
    waiting.do("begin")
    watchdog.until("SLOW")
    report = watchdog.report()
    assert [bool(rank["stack"]) for rank in report["ranks"]] == [True, True], report["ranks"]


def test_what_is_proved_is_said_long_before_any_threshold(tmp_path: Path, stack: ExitStack) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path))
    one, other = pair(watchdog, stack)
    one.do("begin broadcast")
    other.do("begin all_reduce")
    watchdog.until("HANG")
    verdict = watchdog.report()["verdict"]
    assert (verdict["state"], verdict["kind"]) == ("hang", "op_mismatch")


def test_a_rank_that_left_early_is_a_proved_hang(tmp_path: Path, stack: ExitStack) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path))
    one, other = pair(watchdog, stack)
    other.send("exit 0")
    one.do("begin")
    watchdog.until("HANG")
    verdict = watchdog.report()["verdict"]
    assert (verdict["kind"], verdict["culprits"]) == ("finished_early", [0, 1])
    assert verdict["certainty_of"] == {"hang": "proved", "culprits": "possible"}


def test_a_watchdog_that_is_killed_in_the_middle_says_nothing_twice(
    tmp_path: Path, stack: ExitStack
) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path, suspect_after_s=2, hang_after_s=300))
    waiting, busy = pair(watchdog, stack)
    waiting.do("begin")
    watchdog.until("report ")
    watchdog.until_kept("stage", "slow")
    watchdog.kill_and_start_again()
    time.sleep(3)  # more than it would take to say it again
    busy.do("begin")
    for rank in (waiting, busy):
        rank.do("end")
    watchdog.until("the job recovered after")
    said = watchdog.end()
    assert said.count("SLOW") == 1
    assert watchdog.incidents() == ["incident-001"]


def test_a_watchdog_that_takes_over_goes_on_with_the_same_report(
    tmp_path: Path, stack: ExitStack
) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path, suspect_after_s=1.5, hang_after_s=8))
    waiting, _ = pair(watchdog, stack)
    waiting.do("begin")
    watchdog.until("report ")
    watchdog.until_kept("stage", "slow")
    watchdog.kill_and_start_again()
    watchdog.until("HANG")
    assert watchdog.incidents() == ["incident-001"]
    verdict = watchdog.report()["verdict"]
    assert verdict["state"] == "hang"
    assert verdict["detected_after_s"] < 8


def test_a_watchdog_that_is_killed_early_finds_the_hang_after_all(
    tmp_path: Path, stack: ExitStack
) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path, suspect_after_s=2, hang_after_s=300))
    waiting, _ = pair(watchdog, stack)
    waiting.do("begin")
    watchdog.kill_and_start_again()
    watchdog.until("SLOW")


def test_how_a_rank_ended_is_known_after_the_watchdog_was_killed(
    tmp_path: Path, stack: ExitStack
) -> None:
    (tmp_path / "run").mkdir()
    one, other = pair(tmp_path / "run", stack)
    watchdog = stack.enter_context(Watchdog(tmp_path))
    until(lambda: bool(watchdog.kept()))  # it has looked
    other.process.kill()
    other.process.wait(BOUND_S)
    until(lambda: bool(watchdog.kept().get("exits")))
    watchdog.kill_and_start_again()
    one.process.terminate()
    one.process.wait(BOUND_S)
    said = watchdog.end(1)
    assert "FAILED" in said
    assert watchdog.report()["verdict"]["culprits"] == [1]
    process = {rank["rank"]: rank["process"] for rank in watchdog.report()["ranks"]}
    assert process[1]["signal"] == signal.SIGKILL


def test_the_end_of_a_job_that_failed_is_explained(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "run").mkdir()
    one, other = pair(tmp_path / "run", stack)
    watchdog = stack.enter_context(Watchdog(tmp_path))
    until(lambda: bool(watchdog.kept()))  # it has looked
    other.process.kill()
    other.process.wait(BOUND_S)
    time.sleep(0.5)
    one.process.terminate()
    one.process.wait(BOUND_S)
    said = watchdog.end(1)
    assert said.count("FAILED") == 1
    verdict = watchdog.report()["verdict"]
    assert (verdict["state"], verdict["kind"], verdict["culprits"]) == ("failed", "died", [1])


def test_a_hang_may_end_the_ranks(tmp_path: Path, stack: ExitStack) -> None:
    settings: dict[str, Any] = {
        "suspect_after_s": 1.5,
        "hang_after_s": 3,
        "on_hang": OnHang.ABORT,
    }
    watchdog = stack.enter_context(Watchdog(tmp_path, **settings))
    waiting, busy = pair(watchdog, stack)
    waiting.do("begin")
    watchdog.until("ended 2 ranks")
    assert "HANG" in watchdog.said()
    assert waiting.process.wait(BOUND_S) == busy.process.wait(BOUND_S) == -signal.SIGTERM
    assert (watchdog.run_dir / "aborted").exists()
    assert watchdog.incidents() == ["incident-001"]
    assert "FAILED" not in watchdog.end(1)


def test_a_restart_that_works_gives_the_job_its_own_exit_code_back(
    tmp_path: Path, stack: ExitStack
) -> None:
    settings: dict[str, Any] = {
        "suspect_after_s": 1.5,
        "hang_after_s": 3,
        "on_hang": OnHang.ABORT,
    }
    watchdog = stack.enter_context(Watchdog(tmp_path, **settings))
    pair(watchdog, stack)[0].do("begin")
    watchdog.until("ended 2 ranks")
    late = stack.enter_context(Rank(watchdog.run_dir, 0, restart=1))
    watchdog.until("restarted the ranks (restart 1)")
    assert (watchdog.run_dir / "aborted").exists()  # it may yet fail to start
    late.do("work 1")
    until(lambda: not (watchdog.run_dir / "aborted").exists())


def test_ranks_that_are_merely_slow_are_never_ended(tmp_path: Path, stack: ExitStack) -> None:
    settings: dict[str, Any] = {
        "suspect_after_s": 1.5,
        "hang_after_s": 300,
        "on_hang": OnHang.ABORT,
    }
    watchdog = stack.enter_context(Watchdog(tmp_path, **settings))
    waiting, busy = pair(watchdog, stack)
    waiting.do("begin")
    watchdog.until("report ")
    watchdog.until_kept("stage", "slow")
    assert waiting.process.poll() is busy.process.poll() is None
    assert not (watchdog.run_dir / "aborted").exists()


def test_a_restart_is_watched_afresh(tmp_path: Path, stack: ExitStack) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path, suspect_after_s=1.5, hang_after_s=300))
    waiting, busy = pair(watchdog, stack)
    waiting.do("begin")
    watchdog.until("SLOW")
    watchdog.until_kept("stage", "slow")
    for rank in (waiting, busy):
        rank.process.kill()
    waiting, _ = pair(watchdog, stack, restart=1)
    watchdog.until("restarted the ranks (restart 1)")
    waiting.do("begin")
    until(lambda: watchdog.said().count("SLOW") == 2)
    assert watchdog.report(2)["run"]["restart"] == 1


def test_the_supervisor_may_vanish(tmp_path: Path, stack: ExitStack) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path))
    pair(watchdog, stack)
    assert watchdog.process.stdin is not None
    watchdog.process.stdin.close()
    assert watchdog.process.wait(BOUND_S) == 0
    assert watchdog.said() == ""
    watchdog.process.stdin = None


def test_the_lock_of_a_supervisor_that_has_vanished_may_take_a_while_to_go(
    tmp_path: Path, stack: ExitStack
) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path))
    watchdog.until_kept("stage", "healthy")
    lock = (watchdog.run_dir / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert watchdog.process.stdin is not None
    watchdog.process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        watchdog.process.wait(1)
    lock.close()
    until(lambda: not watchdog.run_dir.exists())
    watchdog.process.stdin = None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_that_are_meant_for_the_job_do_not_end_it(
    tmp_path: Path, stack: ExitStack, number: signal.Signals
) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path))
    pair(watchdog, stack)
    until(lambda: bool(watchdog.kept()) or watchdog.process.poll() is not None)
    watchdog.process.send_signal(number)
    time.sleep(0.3)
    assert watchdog.process.poll() is None
    assert watchdog.end() == ""


def test_a_hello_that_makes_no_sense_is_said_and_ends_it(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("wb") as stderr:
        done = subprocess.run(
            [sys.executable, "-m", "hangwatch.watchdog"],
            input=b'{"config": {"no": 1}}\n',
            stderr=stderr,
            check=False,
            timeout=BOUND_S,
        )
    assert done.returncode == 1
    assert "does not understand the supervisor" in (tmp_path / "stderr").read_text()


def test_the_run_directory_may_be_deleted(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "run").mkdir()
    waiting, _ = pair(tmp_path / "run", stack)
    watchdog = stack.enter_context(Watchdog(tmp_path, suspect_after_s=1.5, hang_after_s=300))
    until(lambda: bool(watchdog.kept()))  # it has looked
    shutil.rmtree(watchdog.run_dir)
    waiting.do("begin")
    said = watchdog.until("SLOW")
    assert said.count("cannot be read any more") == 1
    assert watchdog.report()["verdict"]["culprits"] == [1]


def test_reports_that_cannot_be_written_leave_the_verdict_on_the_terminal(
    tmp_path: Path, stack: ExitStack
) -> None:
    watchdog = stack.enter_context(Watchdog(tmp_path, suspect_after_s=1.5, hang_after_s=3))
    waiting, _ = pair(watchdog, stack)
    until(lambda: bool(watchdog.kept()))
    shutil.rmtree(watchdog.report_dir)
    watchdog.report_dir.write_text("no directory")
    waiting.do("begin")
    said = watchdog.until("HANG")
    assert said.count("cannot be written") == 1
    assert "none could be written" in said


def test_a_job_whose_ranks_never_check_in_is_told_at_its_end(tmp_path: Path) -> None:
    with Watchdog(tmp_path) as watchdog:
        assert "nothing" in watchdog.end()
