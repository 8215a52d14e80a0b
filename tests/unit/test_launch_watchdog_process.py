"""The watchdog's restarts, and what it is told."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_hello import hello
from waiting import until

import hangwatch
from hangwatch.agent.environment import outside_environment
from hangwatch.errors import UNUSABLE
from hangwatch.launch import timing
from hangwatch.launch.command import Signals
from hangwatch.launch.watchdog_process import (
    MAX_DEATHS,
    WatchdogProcess,
    how_it_ended,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLAIN = Signals(mask=set(), child=signal.SIG_DFL)
HELLO = hello(Path("/no/such/run"))
FAITHFUL = """
import json, sys
for line in sys.stdin:
    print(line, file=open(sys.argv[1], "a"), end="")
    if "ended" in json.loads(line):
        break
"""
"""Writes down what it is told, and ends when the command has."""


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Where the watchdog writes down what it is told."""
    return tmp_path / "told"


@pytest.fixture
def make(told: Path) -> Iterator[Callable[..., WatchdogProcess]]:
    """Makes watchdogs and ends their processes."""
    made: list[WatchdogProcess] = []

    def build(
        script: str = FAITHFUL, clock: Callable[[], float] = time.monotonic
    ) -> WatchdogProcess:
        program = (sys.executable, "-c", script, str(told))
        made.append(WatchdogProcess(HELLO, os.environ, PLAIN, program=program, now=clock))
        made[-1].start()
        return made[-1]

    yield build
    for watchdog in made:
        watchdog.kill()


def lines(path: Path) -> list[dict[str, object]]:
    """What was told, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_watchdog_is_told_what_to_watch_and_how_it_ended(
    make: Callable[..., WatchdogProcess], told: Path
) -> None:
    watchdog = make()
    watchdog.command_ended(7, 123)
    until(watchdog.gone)
    assert lines(told) == [json.loads(HELLO.line()), {"ended": 7, "asked_to_end_ns": 123}]
    assert watchdog.succeeded()


def test_one_that_died_is_told_the_same_again_and_that_it_died(
    make: Callable[..., WatchdogProcess], told: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    watchdog = make(clock=clock)
    until(lambda: lines(told))
    watchdog.kill()
    watchdog.check()
    wait_s = watchdog.due_in()
    assert wait_s is not None
    assert wait_s > 0
    clock.now += wait_s
    watchdog.check()
    assert watchdog.due_in() is None
    until(lambda: len(lines(told)) == 2)
    said = "the watchdog was killed by signal 9 and is started again"
    sent = json.loads(HELLO.line())
    assert lines(told) == [sent, {**sent, "lost": [said]}]
    assert capsys.readouterr().err == f"hangwatch: {said}\n"


def die(watchdog: WatchdogProcess, clock: Clock) -> None:
    """Wait for the watchdog's end and until the next would be due."""
    until(watchdog.gone)
    watchdog.check()
    clock.now += watchdog.due_in() or 0.0
    watchdog.check()


def given_up(watchdog: WatchdogProcess) -> bool:
    """Return True if there is no process, and none will be started."""
    return watchdog.pid == 0 and watchdog.due_in() is None


def test_one_that_dies_again_and_again_is_given_up(
    make: Callable[..., WatchdogProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    watchdog = make("raise SystemExit(3)", clock)
    for _ in range(MAX_DEATHS + 1):
        assert not given_up(watchdog)
        die(watchdog, clock)
    assert given_up(watchdog)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "ended with exit code 3 and is started again" in said[0]
    assert "the job goes on unwatched" in said[1]


def test_one_that_can_never_work_is_given_up_at_once(
    make: Callable[..., WatchdogProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    watchdog = make(f"raise SystemExit({UNUSABLE})")
    until(watchdog.gone)
    watchdog.check()
    assert given_up(watchdog)
    assert capsys.readouterr().err == ""


def test_one_that_dies_now_and_then_is_never_given_up(make: Callable[..., WatchdogProcess]) -> None:
    clock = Clock()
    watchdog = make("raise SystemExit(3)", clock)
    for _ in range(2 * MAX_DEATHS):
        die(watchdog, clock)
        clock.now += timing.DEATHS_WITHIN_S / 2
    assert not given_up(watchdog)


def test_one_that_died_just_before_the_end_is_started_for_the_report(
    make: Callable[..., WatchdogProcess], told: Path
) -> None:
    watchdog = make(clock=Clock())
    until(lambda: lines(told))
    watchdog.kill()
    watchdog.command_ended(0)
    until(watchdog.gone)
    assert [line.get("ended") for line in lines(told)] == [None, None, 0]


def test_one_that_never_reads_is_not_waited_for(make: Callable[..., WatchdogProcess]) -> None:
    watchdog = make("import time; time.sleep(600)")
    for _ in range(100_000 // len('{"ended": 0}')):
        watchdog.command_ended(0)
    assert not watchdog.gone()


def test_a_program_that_cannot_be_started_counts_as_a_death(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watchdog = WatchdogProcess(HELLO, os.environ, PLAIN, program=("/no/such/program",))
    watchdog.start()
    assert watchdog.gone()
    assert watchdog.due_in() is not None
    assert "cannot be started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("returncode", "said"),
    [(-9, "was killed by signal 9"), (0, "ended with exit code 0"), (1, "ended with exit code 1")],
)
def test_an_end_is_said_in_words(returncode: int, said: str) -> None:
    assert how_it_ended(returncode) == said


def test_the_watchdogs_environment_has_no_injection_and_finds_the_package() -> None:
    home = Path(hangwatch.__file__).resolve().parent.parent
    injected = home / "sitecustomize"
    environ = {"PYTHONPATH": f"{injected}:/theirs", "HANGWATCH_DIR": "/x", "OTHER": "1"}
    found = outside_environment(environ)
    paths = found["PYTHONPATH"].split(":")
    assert str(injected) not in paths
    assert "/theirs" in paths
    assert str(home) in paths or home.name == "site-packages"
    assert "HANGWATCH_DIR" not in found
    assert found["OTHER"] == "1"
