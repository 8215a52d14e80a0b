"""The state that a watchdog leaves to the next one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from incident import VERDICT

from hangwatch.evidence.exits import End
from hangwatch.evidence.gpu.reader import SavedErrors
from hangwatch.evidence.pages.finder import Incarnation
from hangwatch.model import codec
from hangwatch.model.kinds import Kind, State
from hangwatch.watchdog import monitor, state
from hangwatch.watchdog.cadence import Learnt
from hangwatch.watchdog.incident.abort import SavedAborting
from hangwatch.watchdog.incident.judge import SavedJudge
from hangwatch.watchdog.incident.reporter import Detection, Elsewhere, SavedReporter
from hangwatch.watchdog.incident.stages import Incidents, Stage

if TYPE_CHECKING:
    from pathlib import Path

INCIDENTS = Incidents(
    Stage.HANG, ("hang|x",), 1, VERDICT, verdicts=((State.HANG, Kind.NEVER_ENTERED),)
)
WHOLE = monitor.State(
    cadence=Learnt((0.5, 2.0), 12.5),
    reporter=SavedReporter("/reports/r\udcff/incident-001", Elsewhere("Rank 1.", "n1", "")),
    exits=(End(7, 1, 5, None, oom_killed=False), End(8, 1, 6, 9, oom_killed=True)),
    progress={0: 10, 3: 12},
    pages=Incarnation(1, ("r0-0-7.page",)),
    judge=SavedJudge(
        INCIDENTS.saved(),
        SavedAborting(0, (2,), 5, ended_any=True),
        Detection("2026-01-02T03:04:05.000+00:00", 8.25),
        told_elsewhere=False,
    ),
    metrics=9853,
    gpus={"GPU-1": SavedErrors(((94, 0, 1, 2.5),), None, 0, 0.0)},
    said=("hook",),
    lost=("--hook false: exit code 1",),
    losses={"hook": 1},
)


def loaded(run_dir: Path) -> monitor.State:
    found: monitor.State = codec.decode(monitor.State, state.load(run_dir), lenient=True)
    return found


@pytest.mark.parametrize(
    "whole",
    [
        WHOLE,
        replace(WHOLE, judge=replace(WHOLE.judge, aborting=SavedAborting(-1, None))),
        replace(WHOLE, reporter=SavedReporter("", None)),
    ],
)
def test_the_next_watchdog_gets_all_of_it(tmp_path: Path, whole: monitor.State) -> None:
    assert state.save(tmp_path, codec.plain(whole))
    assert loaded(tmp_path) == whole


@pytest.mark.parametrize(
    "damage", [{"exits": [{"pid": "odd"}]}, {"judge": {}}, {"metrics": "9853"}, {"said": None}]
)
def test_a_part_that_is_odd_costs_all_of_it(tmp_path: Path, damage: dict[str, Any]) -> None:
    state.save(tmp_path, codec.plain(WHOLE) | damage)
    with pytest.raises(codec.CodecError):
        loaded(tmp_path)


def test_state_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    assert state.load(tmp_path) == {}
    assert state.save(tmp_path, {"stage": "slow"})
    assert state.load(tmp_path)["stage"] == "slow"
    assert [path.name for path in tmp_path.iterdir()] == [state.FILE]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 99}', b"\xff" * 50])
def test_odd_state_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / state.FILE).write_bytes(content)
    assert state.load(tmp_path) == {}


def test_state_that_cannot_be_kept_is_no_error(tmp_path: Path) -> None:
    assert not state.save(tmp_path / "gone", {})
