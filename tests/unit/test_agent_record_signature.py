"""What is read from the arguments of a call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hangwatch.agent.record.signature import Signature, read_signature
from hangwatch.model.operations import METHODS

BY_NAME = {method.name: method for method in METHODS}
RANKS = (4, 6, 8)


def tensor(*shape: int, dtype: str = "float32") -> Any:
    """As much of a tensor as is looked at."""
    return SimpleNamespace(dtype=f"torch.{dtype}", shape=shape)


def options(root: int | None = None, *, is_async: bool | None = None) -> Any:
    """Options of c10d, which have only what they need."""
    values = {"rootRank": root, "asyncOp": is_async}
    return SimpleNamespace(**{name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize(
    ("name", "args", "signature"),
    [
        (
            "allreduce",
            ([tensor(4)], options(is_async=True)),
            Signature("float32", (4,), is_async=True),
        ),
        ("allreduce", (tensor(4),), Signature("float32", (4,))),
        ("allreduce", ([],), Signature()),
        ("broadcast", ([tensor(2, 3)], options(1)), Signature("float32", (2, 3), root=6)),
        ("broadcast", (tensor(2), 2), Signature("float32", (2,), root=8)),
        ("allgather", ([[tensor(9)]], [tensor(3)], options()), Signature("float32", (3,))),
        ("allgather", ([[tensor(9)]], [[tensor(3)]]), Signature("float32", (3,))),
        ("scatter", ([tensor(3)], [], options(0)), Signature("float32", (3,), root=4)),
        ("gather", ([], [tensor(3)], options(7)), Signature("float32", (3,))),
        ("reduce_scatter", ([tensor(3)], [[tensor(9)]]), Signature("float32", (3,))),
        ("send", ([tensor(3, dtype="int64")], 2, 5), Signature("int64", (3,), peer=8, tag=5)),
        ("recv", ([tensor(3)], 0, 0), Signature("float32", (3,), peer=4)),
        ("recv_anysource", ([tensor(3)], 9), Signature("float32", (3,), tag=9)),
        ("barrier", (options(is_async=True),), Signature(is_async=True)),
        ("monitored_barrier", (1, True), Signature()),
        ("alltoall_base", (tensor(1), tensor(8), [], []), Signature("float32", (8,))),
    ],
)
def test_it_is_read_by_position(name: str, args: tuple[Any, ...], signature: Signature) -> None:
    assert read_signature(BY_NAME[name], args, {}, RANKS) == signature


def test_it_is_read_by_keyword() -> None:
    keywords = {"tensors": [tensor(4)], "opts": options(1, is_async=True)}
    expected = Signature("float32", (4,), root=6, is_async=True)
    assert read_signature(BY_NAME["reduce"], (), keywords, RANKS) == expected
    keywords = {"tensors": [tensor(4)], "dstRank": 1, "tag": 3}
    expected = Signature("float32", (4,), peer=6, tag=3)
    assert read_signature(BY_NAME["send"], (), keywords, RANKS) == expected


def test_sequence_numbers_are_those_of_the_flight_recorder() -> None:
    counts = {method.name: method.seq_count for method in METHODS}
    assert {name for name, count in counts.items() if count == 0} == {
        "send",
        "recv",
        "recv_anysource",
    }
    assert counts.pop("monitored_barrier") == 2
    assert set(counts.values()) == {0, 1}
