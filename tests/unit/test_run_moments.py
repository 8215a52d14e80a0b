"""Tests hold processes at named moments; without them a moment is nothing."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from hangwatch.run import moments

if TYPE_CHECKING:
    from pathlib import Path


def test_a_moment_is_nothing_unless_a_test_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(moments.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    moments.reach("start")
    assert list(tmp_path.iterdir()) == []


def test_a_moment_tells_who_came_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(moments.VARIABLE, str(tmp_path))
    moments.reach("start")
    moments.reach("start")
    assert (tmp_path / "start").read_text().split() == [str(os.getpid())] * 2


def test_a_process_stays_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(moments.VARIABLE, str(tmp_path))
    hold = tmp_path / "start.hold"
    hold.touch()
    thread = threading.Thread(target=moments.reach, args=("start",), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    hold.unlink()
    thread.join(30)
    assert not thread.is_alive()


def test_a_moment_can_be_made_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(moments.VARIABLE, str(tmp_path))
    (tmp_path / "start.crash").touch()
    with pytest.raises(moments.CrashForTestError, match="start"):
        moments.reach("start")


def test_what_is_known_is_kept_where_a_test_has_made_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(moments.VARIABLE, str(tmp_path))
    moments.keep("evidence", lambda: b"nobody asked for it")
    (tmp_path / "evidence").mkdir()
    moments.keep("evidence", lambda: b"first")
    moments.keep("evidence", lambda: b"then")
    kept = sorted((tmp_path / "evidence").iterdir())
    assert [path.read_bytes() for path in kept] == [b"first", b"then"]
