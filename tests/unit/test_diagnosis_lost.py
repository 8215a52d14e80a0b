"""Ranks whose nodes cannot be reached any more."""

from __future__ import annotations

from typing import Any

import pytest
from snapshots import THRESHOLDS, W, blocked, job, killed, only, raised, rank

from hangwatch.diagnosis import diagnose
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, Phase, Reason, State
from hangwatch.model.snapshot import ProcessState, RankSnapshot

PEER = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711"
SIDES = GroupKey((0, 2), "dp", 0), GroupKey((1, 3), "dp", 1)


def lost(number: int, node: str = "n1") -> RankSnapshot:
    """A rank that is known by its number alone."""
    return RankSnapshot(number, node, 0, Phase.RUNNING, ProcessState(alive=False), recorder="")


def failed(number: int, message: str = PEER, age: float = 3.0, **fields: Any) -> RankSnapshot:
    """A rank that raised out of its collective."""
    return rank(
        number, W, blocked(W, 5, line=20), **raised("RuntimeError", message, age=age), **fields
    )


def test_all_ranks_of_a_lost_node_and_no_others_are_the_culprits() -> None:
    here = [rank(number, W, blocked(W, 5, line=20)) for number in (0, 1)]
    verdict = only(job(*here, lost(2), lost(3), lost_nodes=("n1",)))
    assert (verdict.state, verdict.kind, verdict.reason) == (
        State.SLOW,
        Kind.DIED,
        Reason.NODE_LOST,
    )
    assert (verdict.culprits, verdict.victims) == ((2, 3), (0, 1))
    assert verdict.certainty is Certainty.LIKELY
    assert verdict.headline == (
        "Ranks 2 and 3 were lost with their node (n1); ranks 0 and 1 wait for them in "
        "all_reduce #5 of group default_pg."
    )


def test_a_lost_node_is_one_cause_though_its_ranks_are_waited_for_in_two_groups() -> None:
    here = [rank(number, SIDES[number], blocked(SIDES[number], 5)) for number in (0, 1)]
    verdict = only(job(*here, lost(2), lost(3), lost_nodes=("n1",)))
    assert (verdict.culprits, verdict.victims) == ((2, 3), (0, 1))


def test_ranks_that_nothing_is_known_of_are_no_culprits_of_a_lost_node() -> None:
    here = [rank(number, W, blocked(W, 5)) for number in (0, 1)]
    verdict = only(job(*here, lost(2), size=4, lost_nodes=("n1",)))
    assert (verdict.reason, verdict.culprits) == (Reason.NODE_LOST, (2,))


def test_a_rank_that_others_wait_for_on_a_living_node_is_named_beside_the_lost_one() -> None:
    stuck = rank(1, W, enqueued=4)
    ranks = rank(0, W, blocked(W, 5)), stuck, lost(2), lost(3)
    found = diagnose(job(*ranks, lost_nodes=("n1",)), THRESHOLDS)
    assert {verdict.culprits for verdict in found} == {(1,), (2, 3)}


@pytest.mark.parametrize("age_s", [0.5, 30.0])
def test_the_connection_errors_of_the_others_come_of_the_lost_node(age_s: float) -> None:
    snapshot = job(
        failed(0, age=age_s), failed(1, age=age_s), lost(2), lost(3), lost_nodes=("n1",), ended=True
    )
    verdict = only(snapshot)
    assert (verdict.state, verdict.reason) == (State.FAILED, Reason.NODE_LOST)
    assert (verdict.culprits, verdict.victims) == ((2, 3), (0, 1))
    assert "failed after them" in verdict.headline


@pytest.mark.parametrize("end", [raised("ValueError", "bad batch"), killed(9)])
def test_a_node_that_is_given_back_after_a_failure_elsewhere_is_not_its_cause(
    end: dict[str, Any],
) -> None:
    first = rank(0, W, enqueued=4, **end)
    verdict = only(job(first, failed(1), lost(2), lost(3), lost_nodes=("n1",), ended=True))
    assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.PROVED)


def test_who_cannot_reach_anybody_may_be_the_lost_one_itself() -> None:
    here = [rank(number, W, blocked(W, 5)) for number in (0, 1)]
    verdict = only(job(*here, lost(2), lost(3), lost_nodes=("n1",), cut_off=True))
    assert (verdict.reason, verdict.certainty) == (Reason.NODE_LOST, Certainty.POSSIBLE)
    assert "(n1), or n0 is cut off" in verdict.headline
    all_others = [rank(0, W, blocked(W, 5)), lost(1, "n1"), lost(2, "n2"), lost(3, "n3")]
    verdict = only(job(*all_others, lost_nodes=("n1", "n2", "n3"), cut_off=True))
    assert (verdict.reason, verdict.certainty) == (Reason.NETWORK, Certainty.POSSIBLE)
    assert "(n1, n2 and n3), or n0 is cut off" in verdict.headline


def test_ranks_that_are_not_seen_possibly_died_where_all_that_are_seen_lost_a_peer() -> None:
    verdict = only(job(failed(0, age=0.5), failed(1, age=0.5), size=4, ended=True, exit_code=1))
    assert (verdict.state, verdict.kind, verdict.reason) == (
        State.FAILED,
        Kind.DIED,
        Reason.UNKNOWN,
    )
    assert (verdict.culprits, verdict.certainty) == ((2, 3), Certainty.POSSIBLE)
    assert verdict.headline.startswith(
        "One of ranks 2 and 3 probably died, but this was not observed"
    )


def test_ranks_that_are_not_seen_are_not_blamed_for_a_failure_that_is() -> None:
    first = rank(0, W, enqueued=4, **raised("ValueError", "bad batch"))
    verdict = only(job(first, failed(1), size=4, ended=True, exit_code=1))
    assert verdict.culprits == (0,)
