"""The tracebacks of a watchdog that fails at its work, where people look for them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from test_watchdog import Watchdog, pair
from waiting import until

from hangwatch.run.test_hooks import VARIABLE, Point

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_look_that_fails_leaves_its_traceback_with_the_incident_and_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = tmp_path / "moments"
    moments.mkdir()
    monkeypatch.setenv(VARIABLE, str(moments))
    crash = moments / f"{Point.GATHERING}.crash"
    crash.touch()
    with ExitStack() as stack:
        watchdog = stack.enter_context(Watchdog(tmp_path, suspect_after_s=1.5, hang_after_s=3))
        pair(watchdog, stack)[0].do("begin")
        watchdog.until("internal error in the watchdog, still watching")
        crash.unlink()
        watchdog.until("HANG")
        until(lambda: "report " in watchdog.said())
        report = watchdog.report()
        log = (watchdog.report_dir / "incident-001" / "watchdog.log").read_text()
        assert "(traceback in watchdog.log)" in watchdog.end(1)
    (lost,) = [text for text in report["lost"] if "still watching" in text]
    assert lost.endswith("(traceback in watchdog.log)")
    assert "hangwatch.run.test_hooks.CrashForTestError: gathering" in log
    (kept,) = watchdog.report_dir.glob("watchdog-*.log")
    assert "CrashForTestError" in kept.read_text()


def test_a_watchdog_that_fails_altogether_leaves_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = tmp_path / "moments"
    moments.mkdir()
    monkeypatch.setenv(VARIABLE, str(moments))
    (moments / f"{Point.WATCHING}.crash").touch()
    with Watchdog(tmp_path) as watchdog:
        assert watchdog.process.wait(60) == 1
        text = (watchdog.run_dir / "watchdog.log").read_text()
    assert "the watchdog itself" in text
    assert "CrashForTestError: watching" in text
