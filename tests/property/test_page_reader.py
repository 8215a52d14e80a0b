"""No bytes make the page reader crash, or raise anything but the one error."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hangwatch import _native
from hangwatch.errors import PageError
from hangwatch.evidence.pages.reader import parse_page
from hangwatch.model import json_page

if TYPE_CHECKING:
    from pathlib import Path

    from hangwatch.model.page import RankPage

HEAD = 24
"""Magic, version and size: with these changed, it is no page at all."""

SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def page_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A page with something in all of its parts."""
    path = tmp_path_factory.mktemp("pages") / "r0-0-1.page"
    _native.open_page(str(path), {"pid": os.getpid(), "rank": 0, "world_size": 64, "host": "n1"})
    try:
        _native.set_phase("running")
        _native.set_in_call("new_group", "/home/me/train.py", 3, "main")
        for number in range(40):
            _native.add_new_group(number, [0, 1, 2, 8], "/home/me/train.py", 3, "main")
        _native.set_exception("ValueError", "no such thing", "/home/me/train.py", 4, "main")
        _native.beat("KeyError", True, True)
        for slot in range(_native.MAX_GROUPS):
            ranks = [*range(slot, 64, 3), 0, 2, 1]
            _native.define_group(slot, str(slot), "tp", ranks, 0, "gloo")
        for call in range(400):
            slot = call % _native.MAX_GROUPS
            index = _native.record_begin(
                slot,
                "all_gather",
                "all_gather",
                call,
                False,
                "float32",
                [call, 4],
                -1,
                -1,
                0,
                False,
            )
            if call % 3:
                _native.record_end(index, call % 2 == 0)
        return path.read_bytes()
    finally:
        _native.close_page()


def read(data: Any) -> RankPage | None:
    """The page, or None where the bytes are none. Anything else that is raised is a fault."""
    try:
        page = parse_page(data)
    except PageError:
        return None
    assert len(page.events) <= 256
    assert len(page.groups) <= _native.MAX_GROUPS
    assert sum(len(group.key.ranks) for group in page.groups) <= 1 << 20
    indices = [event.index for event in page.events]
    assert indices == sorted(set(indices))
    return page


@SETTINGS
@given(st.binary(max_size=4096))
def test_random_bytes_are_no_page(data: bytes) -> None:
    assert read(data) is None


@SETTINGS
@given(st.data())
def test_changed_words_never_do_harm(page_bytes: bytes, data: st.DataObject) -> None:
    page = bytearray(page_bytes)
    words = st.one_of(
        st.integers(0, 2**64 - 1),
        st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 1 << 32]),
    )
    for _ in range(data.draw(st.integers(1, 60))):
        at = data.draw(st.integers(HEAD // 8, len(page) // 8 - 1)) * 8
        struct.pack_into("=Q", page, at, data.draw(words))
    read(page)


@SETTINGS
@given(st.data())
def test_overwritten_stretches_never_do_harm(page_bytes: bytes, data: st.DataObject) -> None:
    page = bytearray(page_bytes)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(HEAD, len(page) - 1))
        stretch = data.draw(st.binary(min_size=1, max_size=64)) * data.draw(st.integers(1, 400))
        page[at : at + len(stretch)] = stretch[: len(page) - at]
    assert len(page) == len(page_bytes)
    read(page)


@SETTINGS
@given(st.data())
def test_a_page_that_was_cut_is_no_page(page_bytes: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(page_bytes) - 1))
    assert read(page_bytes[:length]) is None
    assert read(memoryview(page_bytes)[:length]) is None


@SETTINGS
@given(st.integers(0, HEAD - 1), st.integers(0, 255))
def test_another_head_is_another_file(page_bytes: bytes, at: int, octet: int) -> None:
    page = bytearray(page_bytes)
    page[at] = octet
    assert (read(page) is not None) == (octet == page_bytes[at])


@SETTINGS
@given(st.integers(0, 7), st.binary(max_size=100))
def test_a_page_is_read_wherever_it_lies(page_bytes: bytes, shift: int, rest: bytes) -> None:
    lying = memoryview(bytes(shift) + page_bytes + rest)[shift:]
    assert read(lying) == read(page_bytes) is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


@SETTINGS
@given(st.data())
def test_any_json_in_a_page_is_checked(page_bytes: bytes, data: st.DataObject) -> None:
    values = _native.read_page(page_bytes)
    for _ in range(data.draw(st.integers(0, 3))):
        place: Any = values
        while True:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else [0]))
            if place[key] and isinstance(place[key], dict | list) and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(JSON)
            break
    read(json_container(json.dumps(values).encode()))


@SETTINGS
@given(st.binary(max_size=300))
@example(b"[" * 100_000)
@example(b'{"groups": 5}')
@example(b"[]")
@example(b"NaN")
def test_text_that_is_no_json_page_is_refused(text: bytes) -> None:
    assert read(json_container(text)) is None


def json_container(text: bytes) -> bytearray:
    page = bytearray(json_page.PAGE_BYTES)
    json_page.write(page, 1, text)
    return page


def test_a_file_is_read_as_its_mapping_is(page_bytes: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.page"
    file.write_bytes(page_bytes)
    assert read(file.read_bytes()) == read(page_bytes)
