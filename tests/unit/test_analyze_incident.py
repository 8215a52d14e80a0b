"""An incident of ours, judged again from what lies in its directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from made_pages import event, group, page, write

from hangwatch.commands.analyze import judge
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, State
from hangwatch.report.schema import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

KEY = GroupKey((0, 1), "default_pg")
MS = 1_000_000


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    """Rank 0 waits in a collective that rank 1 never entered."""
    now_ns = 60_000 * MS
    times = {"heartbeat_ns": now_ns, "gil_ns": now_ns, "created_ns": MS, "phase_ns": 2 * MS}
    waits = event(4, OpState.BLOCKED, issued_ns=50_000 * MS, blocked_ns=50_000 * MS)
    done = event(3, OpState.DONE, issued_ns=49_000 * MS, done_ns=49_001 * MS)
    write(tmp_path, page(0, groups=(group(4, key=KEY),), events=(done, waits), **times))
    write(tmp_path, page(1, groups=(group(3, key=KEY),), events=(done,), **times))
    return tmp_path


def report(incident: Path, process: object, schema: str = SCHEMA) -> None:
    ranks = [{"rank": 0, "process": {"alive": True}}, {"rank": 1, "process": process}]
    (incident / "report.json").write_text(json.dumps({"schema": schema, "ranks": ranks}))


def test_pages_alone_do_not_say_how_a_process_ended(incident: Path) -> None:
    evidence, _ = judge([incident])
    assert evidence.verdicts[0].kind is Kind.NEVER_ENTERED
    assert evidence.verdicts[0].culprits == (1,)


def test_the_report_beside_them_does(incident: Path) -> None:
    report(incident, {"alive": False, "signal": 9, "gone_age_s": 9.0})
    evidence, unreadable = judge([incident])
    assert unreadable == ()
    assert evidence.verdicts[0].kind is Kind.DIED
    assert evidence.verdicts[0].culprits == (1,)
    assert "SIGKILL" in evidence.verdicts[0].headline


def test_a_report_of_another_program_is_left_alone(incident: Path) -> None:
    report(incident, {"alive": False, "signal": 9}, schema="other/1")
    evidence, unreadable = judge([incident])
    assert unreadable == ()
    assert evidence.verdicts[0].kind is Kind.NEVER_ENTERED


@pytest.mark.parametrize("process", [None, 7, {"alive": "yes"}, {"state": "S"}])
def test_a_damaged_report_is_named_and_the_rest_judged(incident: Path, process: object) -> None:
    report(incident, process)
    evidence, unreadable = judge([incident])
    assert "report.json" in unreadable[0]
    assert evidence.verdicts[0].culprits == (1,)


def test_that_nothing_shows_is_no_proof(tmp_path: Path) -> None:
    write(tmp_path, page(0, groups=(group(0, key=KEY),), events=()))
    evidence, _ = judge([tmp_path])
    assert evidence.verdicts[0].state is State.OK
    assert evidence.verdicts[0].certainty is Certainty.LIKELY
