"""What is announced, and what is not announced twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangwatch.model.calls import GroupKey
from hangwatch.model.codec import CodecError, decode, dumps
from hangwatch.model.kinds import Certainty, Kind, Reason, State
from hangwatch.model.verdict import Collective, Verdict
from hangwatch.watchdog.incident.stages import (
    TRANSITIONS,
    Announce,
    Event,
    Incidents,
    Stage,
    event_of,
    signature,
)

WORLD = GroupKey((0, 1), "default_pg")


def verdict(state: State = State.SLOW, culprit: int = 1, seq: int = 7) -> Verdict:
    return Verdict(
        state,
        Kind.NEVER_ENTERED,
        Reason.USER_CODE,
        Certainty.LIKELY,
        culprits=(culprit,),
        group=WORLD,
        collective=Collective("all_reduce", seq),
    )


def told(incidents: Incidents, *events: Event) -> list[Announce | None]:
    """What is announced by these events, in order."""
    found = []
    for event in events:
        state = next((state for state in State if state.value == event.value), None)
        found.append(incidents.happen(event, verdict(state) if state else None))
    return found


@pytest.mark.parametrize(
    ("events", "announced"),
    [
        pytest.param("wait wait progress", ["", "", ""], id="a wait that passes"),
        pytest.param(
            "wait slow slow hang hang progress progress",
            ["", "slow", "", "hang", "", "recovered", ""],
            id="each is said once",
        ),
        pytest.param("hang slow", ["hang", ""], id="a hang never becomes slow"),
        pytest.param(
            "slow progress wait slow",
            ["slow", "recovered", "", ""],
            id="the same verdict, when the job seemed to go on",
        ),
        pytest.param("hang failed", ["hang", "ended"], id="one more line after a hang"),
        pytest.param("slow failed", ["slow", "failed"], id="explained in full while slow"),
        pytest.param(
            "failed retracted hang",
            ["failed", "recovered", "hang"],
            id="a failure that is belied leaves a later hang",
        ),
    ],
)
def test_events_are_announced_once(events: str, announced: list[str]) -> None:
    found = told(Incidents(), *map(Event, events.split()))
    assert [one or "" for one in found] == announced


def test_another_place_is_another_incident() -> None:
    incidents = Incidents()
    incidents.happen(Event.SLOW, verdict(seq=7))
    incidents.happen(Event.PROGRESS)
    assert incidents.happen(Event.SLOW, verdict(seq=8)) is Announce.SLOW
    assert incidents.number == 2


def test_the_same_place_after_a_restart_is_another_incident() -> None:
    incidents = Incidents()
    incidents.happen(Event.HANG, verdict(State.HANG), 0)
    assert incidents.happen(Event.RESTART) is Announce.RESTARTED
    assert incidents.happen(Event.HANG, verdict(State.HANG), 1) is Announce.HANG


def test_slow_and_hang_are_one_incident() -> None:
    incidents = Incidents()
    told(incidents, Event.SLOW, Event.HANG)
    assert incidents.number == 1


@pytest.mark.parametrize("cut", range(6))
def test_a_watchdog_killed_at_any_moment_repeats_nothing(cut: int) -> None:
    events = [Event.WAIT, Event.SLOW, Event.SLOW, Event.HANG, Event.HANG, Event.PROGRESS]
    whole = told(Incidents(), *events)
    first = Incidents()
    before = told(first, *events[:cut])
    successor = decode(Incidents, json.loads(dumps(first.saved())))
    assert before + told(successor, *events[cut:]) == whole


@pytest.mark.parametrize(
    "values", [{"odd": 1}, {"stage": "odd"}, {"stage": "slow", "announced": 3}]
)
def test_odd_state_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(CodecError):
        decode(Incidents, values)


def test_states_that_are_not_told_live_are_no_events() -> None:
    assert event_of(verdict(State.DESYNC)) is None
    assert event_of(verdict(State.HANG)) is Event.HANG


def test_the_signature_tells_groups_with_the_same_members_apart() -> None:
    one = verdict()
    assert signature(one, 0) == signature(verdict(), 0)
    assert signature(one, 0) != signature(verdict(culprit=0), 0)


@given(st.lists(st.sampled_from(list(Event)), max_size=40))
def test_nothing_is_announced_twice_whatever_happens(events: list[Event]) -> None:
    incidents = Incidents()
    found = [one for one in told(incidents, *events) if one in (Announce.SLOW, Announce.HANG)]
    assert len(found) == len(set(found))


def test_every_stage_has_a_way_out() -> None:
    assert {start for start, _ in TRANSITIONS} == set(Stage)


def test_a_job_that_is_restarted_after_a_failure_is_watched_anew() -> None:
    incidents = Incidents()
    incidents.happen(Event.FAILED)
    assert incidents.happen(Event.RESTART) is Announce.RESTARTED
    assert incidents.happen(Event.HANG) is Announce.HANG


def standing(incidents: Incidents) -> list[State]:
    """The states of the verdicts that hold."""
    return [one.state for one in incidents.current]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [("wait", []), ("slow", ["slow"]), ("hang", ["hang"]), ("progress", [])],
            id="until it has passed",
        ),
        pytest.param(
            [("failed", ["failed"]), ("progress", ["failed"]), ("restart", [])],
            id="a failure until the next start",
        ),
        pytest.param(
            [
                *(("desync", ["desync"]), ("hang", ["hang", "desync"])),
                *(("progress", ["desync"]), ("restart", [])),
            ],
            id="ranks out of step, whatever else comes and goes",
        ),
    ],
)
def test_a_verdict_stands(steps: list[tuple[str, list[str]]]) -> None:
    incidents = Incidents()
    for event, states in steps:
        told(incidents, Event(event))
        assert standing(incidents) == states


def test_a_verdict_that_is_no_news_stands_all_the_same() -> None:
    incidents = Incidents()
    told(incidents, Event.SLOW, Event.PROGRESS, Event.WAIT, Event.SLOW)
    assert standing(incidents) == [State.SLOW]
    assert incidents.verdicts == ((State.SLOW, Kind.NEVER_ENTERED),)


def test_a_hang_stands_also_when_the_job_has_ended_of_it() -> None:
    incidents = Incidents()
    incidents.happen(Event.HANG, verdict(State.HANG))
    incidents.happen(Event.FAILED)
    assert standing(incidents) == [State.HANG]


def test_ranks_that_stay_out_of_step_are_told_once_wherever_their_rings_begin() -> None:
    incidents = Incidents()
    found = [incidents.happen(Event.DESYNC, verdict(State.DESYNC, seq=seq)) for seq in (7, 9, 40)]
    assert found == [Announce.DESYNC, None, None]


def test_what_is_remembered_is_no_news_and_no_incident() -> None:
    incidents, seen = Incidents(), verdict(State.DESYNC)
    assert incidents.remember(Announce.DESYNC, seen, 0)
    assert not incidents.remember(Announce.DESYNC, seen, 0)
    assert incidents.happen(Event.DESYNC, seen) is None
    assert (incidents.number, incidents.verdicts) == (0, ())
    assert not incidents.has_announced(Announce.DESYNC, seen, 1), "of another incarnation"


def test_what_stands_and_what_was_told_is_known_to_the_next_watchdog() -> None:
    incidents = Incidents()
    incidents.happen(Event.DESYNC, verdict(State.DESYNC))
    told(incidents, Event.SLOW)
    successor = decode(Incidents, json.loads(dumps(incidents.saved())))
    assert successor.verdicts == incidents.verdicts
    assert [(v.state, v.kind, v.culprits) for v in successor.current] == [
        (State.SLOW, Kind.NEVER_ENTERED, (1,)),
        (State.DESYNC, Kind.NEVER_ENTERED, (1,)),
    ]


def test_ten_thousand_culprits_are_not_kept_for_the_next_watchdog() -> None:
    incidents = Incidents()
    incidents.happen(Event.HANG, replace(verdict(State.HANG), culprits=tuple(range(10_000))))
    assert len(incidents.saved().current[0].culprits) == 1000
