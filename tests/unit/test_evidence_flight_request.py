"""How a rank is asked for its Flight Recorder, and what it has left behind."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest
from sampling import RECORDER, sampling
from waiting import until

from hangwatch.errors import EvidenceError
from hangwatch.evidence import timing
from hangwatch.evidence.flight import request

if TYPE_CHECKING:
    from pathlib import Path


def test_a_request_that_is_not_answered_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FLIGHT_ANSWER_S", 0.1)
    with pytest.raises(EvidenceError, match="did not answer"):
        asyncio.run(request.ask(tmp_path / "r0-0-1.page"))
    assert list(tmp_path.iterdir()) == []


def test_an_old_answer_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    page = tmp_path / "r0-0-1.page"
    (tmp_path / "r0-0-1.page.flight").write_bytes(b"old")
    with sampling(page):
        assert asyncio.run(request.ask(page)) == RECORDER


def test_a_run_directory_that_is_gone_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be asked"):
        asyncio.run(request.ask(tmp_path / "gone" / "r0-0-1.page"))


def test_a_rank_that_was_asked_before_its_end_has_left_its_recorder(tmp_path: Path) -> None:
    page = tmp_path / "r0-0-1.page"
    with sampling(page):
        request.ask_in_passing(page)
        answer = tmp_path / "r0-0-1.page.flight"
        until(answer.exists)
    assert request.left_behind(page, 0.0) == RECORDER
    an_hour_ago = time.time() - 3600
    os.utime(answer, (an_hour_ago, an_hour_ago))
    assert request.left_behind(page, 3600.0) == RECORDER
    with pytest.raises(EvidenceError, match="long before its end"):
        request.left_behind(page, 1.0)
