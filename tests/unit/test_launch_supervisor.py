"""The end of a run: its watchdog has time to conclude."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hangwatch.launch import supervisor, timing
from hangwatch.launch.command import Signals
from hangwatch.launch.watchdog_process import start_now
from hangwatch.settings.config import Config

if TYPE_CHECKING:
    import pytest


def test_a_watchdog_that_is_stuck_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CONCLUDE_S", 0.05)
    looks = iter([False] * 99)
    done: list[str] = []
    watchdog: Any = SimpleNamespace(
        command_ended=lambda *_: done.append("told"),
        gone=lambda: next(looks, True),
        kill=lambda: done.append("ended"),
    )
    run = supervisor._Run(  # noqa: SLF001 (a run without its processes)
        ["true"], Config(), {}, Signals(set(), None), start_now("r"), watchdog=watchdog
    )
    run._conclude(0, 7)  # noqa: SLF001
    assert done == ["told", "ended"]
    assert len(run.lost) == 1
