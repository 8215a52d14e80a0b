"""Reading pickles without running them."""

from __future__ import annotations

import os
import pickle
import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import in_time

from hangwatch.errors import FlightError
from hangwatch.evidence.flight import parse_dump, pickled

HEAD = b"\x80\x02"

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=9) | st.integers(0, 1 << 40), inner, max_size=4)
        | st.lists(scalars, max_size=4).map(tuple)
    ),
    max_leaves=20,
)


@given(value=values, protocol=st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back_as_they_were(value: Any, protocol: int) -> None:
    assert pickled.load(pickle.dumps(value, protocol=protocol)) == value


@given(value=values, cut=st.integers(0, 400), junk=st.binary(max_size=6))
def test_a_damaged_pickle_is_refused_and_nothing_else_is_raised(
    value: Any, cut: int, junk: bytes
) -> None:
    data = pickle.dumps(value, protocol=2)
    damaged = data[: cut % len(data)] + junk + data[cut % len(data) + 1 :]
    try:
        pickled.load(damaged)
    except FlightError as error:
        assert "pickle" in str(error)  # noqa: PT017 (it may also be readable still)


class Hostile:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_imported_or_called(protocol: int) -> None:
    with pytest.raises(FlightError, match="opcode"):
        pickled.load(pickle.dumps({"version": Hostile()}, protocol=protocol))


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"X" + struct.pack("<I", 1 << 31) + b"x.",  # a string of 2 GiB
        HEAD + b"\x8d" + struct.pack("<Q", 1 << 62) + b".",  # of 4 EiB
        HEAD + b"\x96" + struct.pack("<Q", 1 << 40) + b".",  # a bytearray
        HEAD + b"\x8b" + struct.pack("<i", 1 << 30) + b".",  # LONG4
        HEAD + b"\x8a\xff" + b"\xff" * 255 + b".",  # an integer of 2040 bits
        HEAD + b"Nr\xff\xff\xff\x7fj\xff\xff\xff\x7e.",  # the memo, far up
        HEAD + b"(" * 1000 + b"." * 10,
        HEAD + b"]" + b"]a" * 3 + b"aaa.",
        HEAD + b"](Ne" + b"u.",
        HEAD + b"}((tNu.",  # a tuple as a key
        HEAD + b"}]Ns.",
        HEAD + b"N" * 5 + b".",
        HEAD + b"(l.",
        HEAD + b"\x85.",
        b"\x80\x09N.",
        HEAD,
        b"\x80",
    ],
)
def test_a_hostile_pickle_is_refused_at_once(data: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(FlightError):
        pickled.load(data)
    in_time(began, 5)


def test_a_bomb_of_references_is_not_unfolded() -> None:
    # Each list holds the one before ten times: 10 to the 40 items to whom unfolds it.
    bomb = HEAD + b"]q\x00"
    for index in range(40):
        bomb += b"](" + b"h" + bytes([index]) * 1 + (b"h" + bytes([index])) * 9
        bomb += b"eq" + bytes([index + 1])
    dump = bomb.replace(HEAD, HEAD + b"}(X\x07\0\0\0versionX\x01\0\0\x002X\x07\0\0\0entries](", 1)
    with pytest.raises(FlightError, match="no object"):
        parse_dump(dump + b"eu.")


def test_what_is_made_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_CONTAINERS", 100)
    with pytest.raises(FlightError, match="more than 100 lists"):
        pickled.load(pickle.dumps([[] for _ in range(200)], protocol=2))
    monkeypatch.setattr(pickled, "MAX_VALUES", 50)
    with pytest.raises(FlightError, match="more than 50 values"):
        pickled.load(pickle.dumps([1.5] * 99, protocol=2))


def test_nesting_is_bounded() -> None:
    value: list[Any] = [1, 2]
    for _ in range(pickled.MAX_DEPTH + 2):
        value = [value, value[:1]]
    with pytest.raises(FlightError, match="nested deeper"):
        pickled.load(pickle.dumps(value, protocol=2))
