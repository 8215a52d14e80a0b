"""A fault of ours keeps its traceback, in a log that never grows beyond its bound."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NoReturn

import pytest

from hangwatch.console import News
from hangwatch.safety import faultlog
from hangwatch.safety.faultlog import FILE, MAX_BYTES, MAX_ENTRY_BYTES, log_fault, logged

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faultlog, "_counts", {})


def _break(text: str) -> NoReturn:
    raise ValueError(text)


def fault(text: str = "it broke") -> ValueError:
    try:
        _break(text)
    except ValueError as error:
        return error


def test_a_traceback_is_kept_for_the_user_alone(tmp_path: Path) -> None:
    assert log_fault(tmp_path, "a look", fault()) == "traceback in watchdog.log"
    text = (tmp_path / FILE).read_text()
    assert f"process {os.getpid()}: a look\nTraceback (most recent call last):" in text
    assert text.endswith("ValueError: it broke\n")
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert logged(tmp_path) == text.encode()


def test_a_fault_that_comes_again_and_again_fills_nothing(tmp_path: Path) -> None:
    for _ in range(1000):
        log_fault(tmp_path, "a look", fault())
    text = (tmp_path / FILE).read_text()
    assert text.count("Traceback") == 10  # the first, the second, the fourth ...
    assert "a look, 512 times by now" in text


def test_the_log_keeps_what_came_last(tmp_path: Path) -> None:
    for number in range(200):
        log_fault(tmp_path, f"number {number}", fault("x" * 5000))
        assert (tmp_path / FILE).stat().st_size <= MAX_BYTES
    assert MAX_BYTES // 2 <= len(logged(tmp_path)) <= MAX_BYTES
    assert b"number 199\n" in logged(tmp_path)
    assert b"number 0\n" not in logged(tmp_path)


def test_one_entry_is_bounded_and_shows_both_its_ends(tmp_path: Path) -> None:
    log_fault(tmp_path, "the beginning", fault("x" * (1 << 20) + " the end"))
    assert len(logged(tmp_path)) <= MAX_ENTRY_BYTES
    assert b"the beginning" in logged(tmp_path)
    assert b"the end" in logged(tmp_path)


def test_many_different_faults_are_told_apart_only_so_far(tmp_path: Path) -> None:
    for number in range(1000):
        log_fault(tmp_path, f"number {number}", fault())
    assert len(faultlog._counts) <= 257  # noqa: SLF001 (what it takes)


@pytest.mark.parametrize("what", ["nothing", "fifo", "link", "directory"])
def test_what_cannot_be_kept_is_no_error_and_blocks_nothing(tmp_path: Path, what: str) -> None:
    path = tmp_path / FILE
    match what:
        case "nothing":
            tmp_path.rmdir()
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
    assert log_fault(tmp_path, "a look", fault()) == ""
    assert logged(tmp_path) == b""
    assert log_fault(None, "a look", fault()) == ""


def test_an_error_that_cannot_be_printed_is_no_error(tmp_path: Path) -> None:
    class Odd(Exception):  # noqa: N818 (it is odd)
        def __str__(self) -> str:
            raise RuntimeError

    log_fault(tmp_path, "a look", Odd())
    assert b"a look" in logged(tmp_path)


def test_the_loss_names_the_log(tmp_path: Path) -> None:
    news = News(os.open(os.devnull, os.O_WRONLY))
    news.run_dir = tmp_path
    news.fault("iteration", "the watchdog met an error", fault())
    news.fault("iteration", "the watchdog met an error", fault())
    assert news.lost == ["the watchdog met an error (traceback in watchdog.log)"]
    assert logged(tmp_path).count(b"Traceback") == 2
