"""Tests hold processes at named moments; without them a moment is nothing."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from hangwatch.run import test_hooks

if TYPE_CHECKING:
    from pathlib import Path


def test_a_moment_is_nothing_unless_a_test_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(test_hooks.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    test_hooks.reach("start")
    assert list(tmp_path.iterdir()) == []


def test_a_moment_tells_who_came_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(test_hooks.VARIABLE, str(tmp_path))
    test_hooks.reach("start")
    test_hooks.reach("start")
    assert (tmp_path / "start").read_text().split() == [str(os.getpid())] * 2


def test_a_process_stays_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(test_hooks.VARIABLE, str(tmp_path))
    hold = tmp_path / "start.hold"
    hold.touch()
    thread = threading.Thread(target=test_hooks.reach, args=("start",), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    hold.unlink()
    thread.join(30)
    assert not thread.is_alive()


def test_a_moment_can_be_made_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(test_hooks.VARIABLE, str(tmp_path))
    (tmp_path / "start.crash").touch()
    with pytest.raises(test_hooks.CrashForTestError, match="start"):
        test_hooks.reach("start")


def test_what_is_known_is_kept_where_a_test_has_made_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(test_hooks.VARIABLE, str(tmp_path))
    test_hooks.keep("evidence", lambda: b"nobody asked for it")
    (tmp_path / "evidence").mkdir()
    test_hooks.keep("evidence", lambda: b"first")
    test_hooks.keep("evidence", lambda: b"then")
    kept = sorted((tmp_path / "evidence").iterdir())
    assert [path.read_bytes() for path in kept] == [b"first", b"then"]
