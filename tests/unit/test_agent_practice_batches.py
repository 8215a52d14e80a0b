"""What a batch is told apart by, without running anything of the program's."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode

from hangwatch.agent.practice.batches import digest, largest_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = "x" * (1 << 20)


class AskedError(AssertionError):
    """Code of the program was run."""


class Lazy(dict[str, Any]):
    """Draws an augmentation where an item is looked at."""

    def values(self) -> Any:
        raise AskedError

    def __getitem__(self, key: str) -> Any:
        raise AskedError

    def __iter__(self) -> Any:
        raise AskedError


class Paged(list[int]):
    def __getitem__(self, index: Any) -> Any:
        raise AskedError

    def __iter__(self) -> Any:
        raise AskedError


class Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise AskedError

    def __getitem__(self, index: Any) -> str:
        raise AskedError


class Counted(torch.Tensor):  # type: ignore[misc]
    def numel(self) -> int:
        raise AskedError

    @property
    def shape(self) -> Any:
        raise AskedError


class Pretended:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise AskedError


class Pair(NamedTuple):
    first: Any
    second: Any

    def __iter__(self) -> Any:
        raise AskedError


class Logs(TorchFunctionMode):  # type: ignore[misc]
    """Sees each operation, in the order of the program."""

    def __torch_function__(self, *_: Any) -> Any:
        raise AskedError


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lazy(a=1),
        lambda: Paged([1]),
        lambda: Text("a"),
        lambda: torch.ones(2).as_subclass(Counted),
        Pretended,
    ],
    ids=["dict", "list", "str", "tensor", "__class__"],
)
def test_nothing_of_the_programs_own_classes_is_run(make: Callable[[], Any]) -> None:
    batch = make()
    assert digest(batch) == digest([batch]) == ""
    assert largest_tensor([batch]) == 0


def test_a_mode_of_the_program_sees_nothing() -> None:
    batch = {"data": torch.ones(3)}
    expected = digest(batch)
    with Logs():
        assert (digest(batch), largest_tensor(batch)) == (expected, 3)


def test_what_python_and_torch_make_is_told_apart() -> None:
    parts: list[Any] = [torch.ones(3), torch.zeros(3), "a", "b", b"a", 1, 2, 1.0, True, LONG]
    batches = [*parts, *({"a": part} for part in parts[:1]), Pair(1, "a"), OrderedDict(a=2.5)]
    digests = [digest([batch, 0]) for batch in batches]
    assert "" not in digests
    assert digests[0] == digests[len(parts)]  # the names in a dict do not matter
    assert len(set(digests)) == len(batches) - 1


def test_what_holds_itself_is_looked_at_for_a_while() -> None:
    batch: dict[str, Any] = {"x": torch.ones(2)}
    batch["root"] = batch
    nested: list[Any] = [torch.ones(3)]
    for _ in range(60):
        nested = [nested, nested]
    for value in (batch, nested):
        assert digest(value) == digest(value)
        largest_tensor(value)
