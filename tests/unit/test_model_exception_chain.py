"""The text of an exception on the page, and what led to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangwatch.model.json_page import SEPARATOR, packed, unpacked

TEXTS = st.text().filter(lambda text: SEPARATOR not in text)


@given(TEXTS, TEXTS, TEXTS, st.lists(TEXTS.filter(bool), max_size=3))
def test_what_was_packed_comes_out(message: str, thrown: str, sent: str, after: list[str]) -> None:
    assert unpacked(packed(message, thrown, sent, after)) == (message, thrown, sent, tuple(after))


def test_a_text_alone_is_a_field() -> None:
    assert packed("bad", "", "", ()) == "bad"
    assert unpacked("bad (after 3 attempts)") == ("bad (after 3 attempts)", "", "", ())


def test_no_text_can_pretend_to_be_two() -> None:
    told = unpacked(packed(f"a{SEPARATOR}b", f"c{SEPARATOR}d", "", ()))
    assert told == ("a b", "c d", "", ())
