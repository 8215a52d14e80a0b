"""Data loaders are watched without asking anything of the user's own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from hangwatch.agent.call_site import Prefixes
from hangwatch.agent.habits import Loaders, Progress, _length

if TYPE_CHECKING:
    from collections.abc import Iterator

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
