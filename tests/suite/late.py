"""A pytest plugin: what did not answer in time is asked for once more, after all else, alone.

A busy machine starves a real job now and then, and the test that waits for it then knows
nothing. That, and only that, is asked once more: in a process of its own, when all other tests
are over. A wrong answer is red at once. So are more than MOST late ones, and one that is late
twice. Both logs of each are kept in KEPT.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

KEPT = Path("build", "late")
ANSWERS = KEPT / "answers.jsonl"
"""A line for each run of pytest: which tests answered late, and which wrong."""
MOST = 3
"""Tests of one run that may be asked once more."""
LATE = (NoAnswerError, subprocess.TimeoutExpired)
TIMED_OUT = re.compile(r"Timeout \(>[\d.]+s\) from pytest-timeout")
FIRST = "--first-answer"


def is_late(error: BaseException) -> bool:
    """Return True if a test failed since something did not come, and not since it was wrong.

    What it waits for while it cleans up after a wrong answer is no excuse for that.
    """
    before = error.__context__
    while before is not None:
        if isinstance(before, AssertionError):
            return False
        before = before.__context__
    return isinstance(error, LATE) or bool(TIMED_OUT.match(str(error)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FIRST, action="store_true", help="ask nothing once more")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Once() if config.getoption(FIRST) else _Late(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and is_late(call.excinfo.value):
        report.user_properties.append(("late", True))
    return report


class _Once:
    """Sees to it that a run in which nothing has passed is red, such as one that only skips."""

    def __init__(self) -> None:
        self._passed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed |= report.passed and report.when == "call"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and not self._passed:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


class _Late:
    """Gathers the reports of all workers, and asks when they are done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._kept = config.rootpath / KEPT
        self._kept.mkdir(parents=True, exist_ok=True)
        self._failed: dict[str, list[pytest.TestReport | pytest.CollectReport]] = {}
        self._late: dict[str, bool | None] = {}
        """Test to whether it passed when it was asked once more; None: it was not asked."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, []).append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        late = {test: reports for test, reports in self._failed.items() if _all_late(reports)}
        self._late = dict.fromkeys(late)
        # Not where it was interrupted, or is red for something else than a test.
        only_tests = session.exitstatus == pytest.ExitCode.TESTS_FAILED
        if only_tests and len(late) == len(self._failed) and 0 < len(late) <= MOST:
            self._late = {test: self._ask(test, reports) for test, reports in late.items()}
            if all(self._late.values()):
                self._forgive()
                session.exitstatus = pytest.ExitCode.OK

    def _ask(self, test: str, reports: Sequence[pytest.TestReport | pytest.CollectReport]) -> bool:
        """Run a test once more in a process of its own; whether it passed."""
        name = re.sub(r"\W+", "-", test.rpartition("/")[2])
        first = "\n".join(text for report in reports for text in _told(report))
        (self._kept / f"{name}.first.log").write_text(first)
        with (self._kept / f"{name}.second.log").open("wb") as log:
            command = [sys.executable, "-m", "pytest", "-n", "0", FIRST, test]
            done = subprocess.run(  # noqa: S603 (the same tests)
                command, cwd=self._config.rootpath, stdout=log, stderr=log, check=False
            )
        return done.returncode == 0

    def _forgive(self) -> None:
        stats = self._config.pluginmanager.getplugin("terminalreporter").stats
        stats["answered late"] = [*stats.pop("failed", []), *stats.pop("error", [])]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, passed in self._late.items():
            then = {True: ", then did", False: " twice", None: ""}[passed]
            terminalreporter.write_line(f"did not answer{then}: {test}")
        wrong = [test for test in self._failed if test not in self._late]
        with (self._config.rootpath / ANSWERS).open("a") as file:
            file.write(json.dumps({"late": list(self._late), "wrong": wrong}) + "\n")


def _all_late(reports: Sequence[pytest.TestReport | pytest.CollectReport]) -> bool:
    properties = [getattr(report, "user_properties", ()) for report in reports]
    return all(("late", True) in map(tuple, own) for own in properties)


def _told(report: pytest.TestReport | pytest.CollectReport) -> list[str]:
    return [report.longreprtext, *(f"--- {title}\n{text}" for title, text in report.sections)]
