"""What the watchdog tells people of a verdict, also where it cannot make a report of it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from incident import EVIDENCE, VERDICT

from hangwatch.console import News
from hangwatch.report.files import load, open_run
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
    assert load(reporter.report)[1]["verdict"]["headline"] == VERDICT.headline


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
