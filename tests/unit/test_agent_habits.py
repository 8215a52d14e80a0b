"""The agent's side of costly mistakes: when it asks torch, and what it leaves."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.agent.call_site import Prefixes
from hangwatch.agent.guard import LIMIT
from hangwatch.agent.habits import SUFFIX, WRITE_S, Practice, at_work

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS: Any = SimpleNamespace(find=lambda _group: None)
FACTS: list[dict[str, Any]] = [{"epochs": 3}]


class Waiting:
    """A thread that waits in C called by code of a file, or in Python below it."""

    def __init__(self, file: str, *, below: bool) -> None:
        self._gate, there = threading.Lock(), threading.Event()
        self._gate.acquire()
        self._last = "_wait" if below else "f"
        names: dict[str, Any] = {
            "there": there.set,
            "wait": self._wait if below else self._gate.acquire,
        }
        source = "def f():\n    there()\n    wait()"
        exec(compile(source, file, "exec"), names)  # noqa: S102 (a frame of that file)
        self._thread = threading.Thread(target=names["f"])
        self._thread.start()
        assert there.wait(30)
        while not self._waits():
            pass

    def _wait(self) -> None:
        self._gate.acquire()

    def _waits(self) -> bool:
        frames = sys._current_frames()  # noqa: SLF001 (there is no other way to them)
        frame = frames[self._thread.ident or 0]
        return frame.f_code.co_name == self._last and frame.f_lineno != FIRST_LINE

    def end(self) -> None:
        self._gate.release()
        self._thread.join()


FIRST_LINE = 2
"""Of its function, where it says that it is there."""


@pytest.fixture
def waiting() -> Iterator[list[Waiting]]:
    started: list[Waiting] = []
    yield started
    for waiting in started:
        waiting.end()


BACKWARD = "/venv/torch/autograd/graph.py"
DDP = "/venv/torch/nn/parallel/distributed.py"


@pytest.mark.parametrize(
    ("file", "below", "busy"),
    [
        (BACKWARD, True, True),
        (BACKWARD, False, True),
        (DDP, False, True),
        (DDP, True, False),
        ("/home/ada/train.py", False, False),
    ],
    ids=["in a backward pass", "at its begin", "in the reducer", "in the model", "elsewhere"],
)
def test_torch_is_asked_only_while_its_lock_is_free(
    waiting: list[Waiting], file: str, *, below: bool, busy: bool
) -> None:
    waiting.append(Waiting(file, below=below))
    assert at_work() is busy


def test_facts_are_left_for_the_owner_alone_and_only_when_there_are_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    practice = Practice(GROUPS, Prefixes(), lambda: now)
    page = str(tmp_path / "r0-0-1.page")
    file = Path(page + SUFFIX)
    now = WRITE_S
    practice.look(page)
    assert not file.exists()
    monkeypatch.setattr(practice.loaders, "facts", lambda: FACTS)
    practice.look(page)
    assert not file.exists(), "it is not yet time again"
    now = 2 * WRITE_S
    practice.look(page)
    assert json.loads(file.read_bytes()) == {"loaders": FACTS, "replicas": []}
    assert file.stat().st_mode & 0o777 == 0o600
    written_ns = file.stat().st_mtime_ns
    practice.finish(page)
    assert file.stat().st_mtime_ns == written_ns
    assert practice.guard.swallowed == 0


def test_errors_of_ours_end_the_observation_and_nothing_else(tmp_path: Path) -> None:
    practice = Practice(GROUPS, Prefixes())
    practice.loaders.facts = lambda: FACTS  # type: ignore[method-assign]
    for _ in range(LIMIT):
        assert practice.active
        practice.finish(str(tmp_path / "gone" / "r0-0-1.page"))
    assert not practice.active
