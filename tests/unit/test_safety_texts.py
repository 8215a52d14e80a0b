"""What is no UTF-8 becomes readable, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangwatch.console import fold_command, printable
from hangwatch.launch.watchdog_process import shortened
from hangwatch.run.launchers import shared_name
from hangwatch.safety.texts import readable, readable_all, readable_report

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größer \N{GRINNING FACE}", "größer \N{GRINNING FACE}"),
        ("\udcff\udc80x", "\\xff\\x80x"),
        ("\ud83d", "\\ud83d"),
        ("\udc00", "\\udc00"),
    ],
)
def test_lone_surrogates_are_spelt_out(text: str, shown: str) -> None:
    assert readable(text) == shown
    assert printable(text) == shown


@given(ANY_TEXT)
def test_any_text_can_be_encoded(text: str) -> None:
    assert orjson.loads(orjson.dumps(readable_all({text: [text, 1, None]})))
    readable(text).encode()
    if text.isascii():
        assert readable(text) == text


def test_a_report_is_changed_only_where_it_has_to_be() -> None:
    plain = {"a": ["ü", 1, None]}
    assert readable_report(plain) is plain
    odd: dict[str, Any] = {"a": {"\udcff": ("\udcfe", 2)}}
    assert readable_report(odd) == {"a": {"\\xff": ["\\xfe", 2]}}
    assert "\\ud" not in json.dumps(readable_report(odd))


def test_a_command_is_told_readably() -> None:
    assert shortened(["train", "\udcff"]) == ("train", "\\xff")
    assert fold_command(["train", "\udcff"]) == "train '\\xff'"


def test_a_job_whose_names_are_no_utf_8_has_a_name() -> None:
    assert shared_name({"MASTER_ADDR": "\udcff"}) != shared_name({"MASTER_ADDR": "\udcfe"})
