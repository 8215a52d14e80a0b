"""The container of the Python recorder's page."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangwatch.model import json_page


def page_with(*texts: dict[str, object]) -> bytearray:
    """A page to which these were written, one after the other."""
    page = bytearray(json_page.PAGE_BYTES)
    for generation, values in enumerate(texts, 1):
        json_page.write(page, generation, json_page.encode(values))
    return page


def test_the_last_of_many_texts_is_read() -> None:
    texts: list[dict[str, object]] = [{"n": n, "text": "x" * n} for n in range(5)]
    for count in range(1, 6):
        assert json_page.decode(page_with(*texts[:count])) == texts[count - 1]


def test_a_shorter_text_after_a_longer_one_is_read_whole() -> None:
    assert json_page.decode(page_with({"a": "x" * 99}, {"a": 2}, {"a": 3})) == {"a": 3}


@pytest.mark.parametrize("cut", [0, 1, 8, 15, 16, 17, 30])
def test_a_writer_that_was_killed_leaves_the_text_before(cut: int) -> None:
    page = page_with({"n": 1}, {"n": 2})
    after = bytearray(page)
    json_page.write(after, 3, json_page.encode({"n": 3, "more": "x" * 40}))
    changed = [i for i in range(len(page)) if page[i] != after[i]]
    for i in changed[len(changed) * cut // 31 :]:
        after[i] = page[i]
    assert json_page.decode(after) in ({"n": 2}, {"n": 3, "more": "x" * 40})


def test_a_page_that_was_made_and_not_written_is_none() -> None:
    with pytest.raises(ValueError, match="no JSON page"):
        json_page.decode(bytes(json_page.PAGE_BYTES))


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        json_page.encode({"text": "x" * json_page.PAGE_BYTES})


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"1", b"{", b'"\xff"', b"[" * 100_000, b"9" * 5000, b"null"]
)
def test_a_buffer_that_holds_no_object_is_refused(text: bytes) -> None:
    page = bytearray(json_page.PAGE_BYTES)
    json_page.write(page, 1, text)
    with pytest.raises(ValueError, match=r"."):
        json_page.decode(page)


def test_only_the_headers_checksum_makes_a_text_valid() -> None:
    page = page_with({"n": 1})
    at = page.index(b'{"n":1}')
    page[at + 5] = ord("2")
    with pytest.raises(ValueError, match="neither of its buffers is whole"):
        json_page.decode(page)
    checksum = zlib.crc32(b'{"n":2}', zlib.crc32(page[at - 16 : at - 4] + bytes(4)))
    page[at - 4 : at] = checksum.to_bytes(4, "little")
    assert json_page.decode(page) == {"n": 2}


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_decoded_or_refused(data: bytes, ours: bool) -> None:  # noqa: FBT001 (hypothesis)
    try:
        json_page.decode(json_page.MAGIC * ours + data)
    except ValueError:
        return


@given(st.integers(0, 3000), st.binary(min_size=1, max_size=9))
def test_a_corrupted_page_is_decoded_or_refused(at: int, junk: bytes) -> None:
    page = page_with({"n": 1, "text": "x" * 500}, {"n": 2, "text": "y" * 700})
    page[at : at + len(junk)] = junk
    try:
        assert json_page.decode(page)["n"] in {1, 2}
    except ValueError:
        return


@given(st.integers(0, json_page.PAGE_BYTES))
def test_a_truncated_page_is_decoded_or_refused(length: int) -> None:
    try:
        assert json_page.decode(bytes(page_with({"n": 1}, {"n": 2})[:length]))["n"] in {1, 2}
    except ValueError:
        return
