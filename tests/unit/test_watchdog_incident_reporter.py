"""What the watchdog tells people of a verdict, also where it cannot make a report of it."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from incident import EVIDENCE, VERDICT
from waiting import BOUND_S

from hangwatch.console import News
from hangwatch.report.directories import open_run
from hangwatch.report.files import load_incident, write_incident
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident import reporter as reporting
from hangwatch.watchdog.incident.reporter import Reporter

if TYPE_CHECKING:
    from pathlib import Path

    from hangwatch.model.report import Evidence

UNTRUE = replace(EVIDENCE, verdicts=(replace(VERDICT, culprits=None),))  # type: ignore[arg-type]
"""Of which no report can be made."""


def told(evidence: Evidence, report_dir: Path | None, tmp_path: Path) -> tuple[str, Reporter]:
    """What is said of an incident, and who has said it."""
    error = tmp_path / "stderr"
    fd = os.open(error, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    news = News(fd)
    news.run_dir = tmp_path
    reporter = Reporter(report_dir, news, "", fd)
    asyncio.run(reporter.verdict(evidence, same_incident=False))
    os.close(fd)
    return error.read_text(), reporter


def test_a_verdict_is_kept_and_told(tmp_path: Path) -> None:
    text, reporter = told(EVIDENCE, open_run(tmp_path, "r"), tmp_path)
    assert VERDICT.headline in " ".join(text.split())
    assert reporter.report is not None
    assert load_incident(reporter.report)[1]["verdict"]["headline"] == VERDICT.headline


def test_a_verdict_is_told_where_nothing_can_be_written(tmp_path: Path) -> None:
    text, reporter = told(EVIDENCE, None, tmp_path)
    assert VERDICT.headline in " ".join(text.split())
    assert reporter.report is None


@pytest.mark.parametrize("kept", [True, False])
def test_the_headline_is_told_where_no_report_can_be_made(tmp_path: Path, *, kept: bool) -> None:
    text, reporter = told(UNTRUE, open_run(tmp_path, "r") if kept else None, tmp_path)
    assert f"HANG ({VERDICT.certainty}) {VERDICT.headline}" in text
    assert text.count("the report could not be made") == 1
    assert reporter.report is None
    assert "TypeError" in (tmp_path / "watchdog.log").read_text()


def test_a_write_that_timed_out_is_not_overtaken_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    may_end = threading.Event()

    def slow(*arguments: Any, **options: Any) -> Path:
        if not done:
            may_end.wait(BOUND_S)
        path = write_incident(*arguments, **options)
        done.append(path.name)
        return path

    async def work() -> None:
        await reporter.verdict(EVIDENCE, same_incident=False)
        assert reporter.report is None
        monkeypatch.setattr(timing, "REPORT_WRITE_S", BOUND_S)
        asyncio.get_running_loop().call_later(0.1, may_end.set)
        await reporter.verdict(EVIDENCE, same_incident=True)

    monkeypatch.setattr(reporting, "write_incident", slow)
    monkeypatch.setattr(timing, "REPORT_WRITE_S", 0.1)
    with (tmp_path / "stderr").open("wb") as error:
        directory = open_run(tmp_path, "r")
        reporter = Reporter(directory, News(error.fileno()), "", error.fileno())
        asyncio.run(work())
    assert done == ["incident-001", "incident-001"]
    assert reporter.report == directory / "incident-001"
