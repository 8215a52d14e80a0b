"""The agent's side of costly mistakes: when it asks torch, and what it leaves."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from hangwatch.agent.call_site import Prefixes
from hangwatch.agent.guard import LIMIT
from hangwatch.agent.habits import SUFFIX, WRITE_S, Loaders, Practice, Progress, _length, at_work

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
    practice.look(page, busy=False)
    assert not file.exists()
    monkeypatch.setattr(practice.loaders, "facts", lambda: FACTS)
    practice.look(page, busy=False)
    assert not file.exists(), "it is not yet time again"
    now = 2 * WRITE_S
    practice.look(page, busy=False)
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


BATCHES = 3
NOBODY = "it was asked for its length"


class Numbers:
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        raise AssertionError(NOBODY)

    def __getattr__(self, name: str) -> Any:
        if name == "set_epoch":
            raise AssertionError(name)
        raise AttributeError(name)


class Stream(IterableDataset[int]):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        return iter(range(BATCHES))

    def __len__(self) -> int:
        raise AssertionError(NOBODY)


class Buckets:
    """A batch sampler that draws its batches, also to count them."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[n] for n in range(BATCHES)])

    def __len__(self) -> int:
        raise AssertionError(NOBODY)


class Sequence:
    """A batch sampler of Python's old protocol, whose iterator asks it for its length."""

    def __getitem__(self, index: int) -> list[int]:
        if index >= BATCHES:
            raise IndexError
        return [index]

    def __len__(self) -> int:
        raise AssertionError(NOBODY)


class Training:
    """In the place of Replicas: each look at it finds the model trained further."""

    def __init__(self) -> None:
        self.steps = 0

    def progress(self) -> Progress:
        self.steps += 10
        return Progress(self.steps, self.steps)

    def in_training(self) -> bool:
        return True


@pytest.fixture
def loaders() -> Loaders:
    training: Any = Training()
    return Loaders(training, Prefixes())


def begin(loaders: Loaders, loader: DataLoader[int]) -> Iterator[int]:
    iterator: Iterator[int] = iter(loader)
    loaders.begin(loader, iterator)
    return iterator


def distributed(data: Any) -> DataLoader[int]:
    return DataLoader(data, sampler=DistributedSampler(data, num_replicas=1, rank=0))


def loops(loaders: Loaders) -> int:
    return sum(fact["epochs"] for fact in loaders.facts())


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Numbers(), batch_sampler=Buckets()),
        DataLoader(Numbers(), batch_sampler=Sequence()),
        DataLoader(Stream(), batch_size=None),
        DataLoader(Numbers(), sampler=DistributedSampler(range(BATCHES), num_replicas=1, rank=0)),
    ],
    ids=["batch sampler", "sequence of batches", "stream", "data set"],
)
def test_nothing_of_the_users_is_asked_for_its_length(
    loaders: Loaders, loader: DataLoader[int]
) -> None:
    for _ in range(3):
        assert sum(1 for _ in begin(loaders, loader)) == BATCHES  # list() asks, too
    assert getattr(loader, "_IterableDataset_len_called", None) is None
    assert loops(loaders) == (2 if isinstance(loader.sampler, DistributedSampler) else 0)


def test_a_loop_amid_another_one_is_none_of_its_own(loaders: Loaders) -> None:
    training, evaluation = (distributed(range(BATCHES)) for _ in range(2))
    outer = begin(loaders, training)
    next(outer)
    list(begin(loaders, evaluation))
    assert loops(loaders) == 0
    list(outer)
    list(begin(loaders, evaluation))  # the first one is over, though its iterator is kept
    assert loops(loaders) == 1


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 3, 4, None])
def test_the_length_is_what_torch_has_written_down(size: int | None, *, drop_last: bool) -> None:
    data: Any = range(10)
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    loader = DataLoader(data, size, sampler=sampler, drop_last=drop_last and size is not None)
    assert _length(loader) == len(loader)
