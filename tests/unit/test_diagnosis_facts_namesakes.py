"""Groups that are known by the same, of processes that were not started together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from snapshots import THRESHOLDS, blocked, job, op, rank, world

from hangwatch.diagnosis import diagnose
from hangwatch.model.kinds import Certainty, Kind, Phase, State
from hangwatch.model.snapshot import GroupProgress

if TYPE_CHECKING:
    from hangwatch.model.calls import GroupKey
    from hangwatch.model.snapshot import OpRecord, RankSnapshot
    from hangwatch.model.verdict import Verdict

FIRST = world(2)
SECOND = replace(FIRST, index=1)
PAIR = world(2, "pair")


def over(key: GroupKey, made_s: float, ended_s: float) -> GroupProgress:
    return GroupProgress(
        key, "0", 12, 12, alive=False, made_age_s=made_s, ended_age_s=ended_s, in_order=True
    )


def used(key: GroupKey, made_s: float, enqueued: int) -> GroupProgress:
    return GroupProgress(key, "0", enqueued, enqueued - 1, made_age_s=made_s)


def trainer(*calls: OpRecord, node: str = "n0", ended_s: float = 60.0) -> RankSnapshot:
    """In its second world of the two, the first of which was over a minute ago."""
    groups = over(FIRST, 90.0, ended_s), used(SECOND, 50.0, calls[-1].seq)
    return rank(0, None, *calls, groups=groups, born_age_s=100.0, node=node)


def helper(*calls: OpRecord, born_s: float = 55.0, made_s: float = 50.0) -> RankSnapshot:
    """In its first world."""
    groups = (used(FIRST, made_s, calls[-1].seq),)
    return rank(1, None, *calls, groups=groups, born_age_s=born_s)


def verdicts(*ranks: RankSnapshot) -> tuple[Verdict, ...]:
    return diagnose(job(*ranks), THRESHOLDS)


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_process_started_later_is_in_the_group_that_the_others_are_in(node: str) -> None:
    # A trainer validates while its helper waits in the world that they share.
    (verdict,) = verdicts(trainer(op(SECOND, 19), node=node), helper(blocked(FIRST, 20)))
    assert (verdict.state, verdict.culprits, verdict.victims) == (State.SLOW, (0,), (1,))
    assert (verdict.kind, verdict.waits[0].seq) == (Kind.NEVER_ENTERED, 20)


def test_what_it_leaves_out_there_is_told_of_it() -> None:
    (verdict,) = verdicts(
        trainer(op(SECOND, 19), blocked(SECOND, 20, "broadcast")),
        helper(op(FIRST, 19), blocked(FIRST, 20)),
    )
    assert (verdict.state, verdict.kind) == (State.SLOW, Kind.OP_MISMATCH)
    assert verdict.certainty is not Certainty.PROVED  # clocks alone tell that it is one group


def test_a_group_that_the_others_have_not_made_yet_is_none_of_theirs() -> None:
    gone = rank(0, groups=(over(FIRST, 90.0, 60.0),), born_age_s=100.0)
    (verdict,) = verdicts(gone, helper(blocked(FIRST, 1)))
    assert (verdict.state, verdict.culprits) == (State.SLOW, (0,))
    assert verdict.kind is not Kind.FINISHED_EARLY


def test_ranks_started_together_are_compared_as_they_count() -> None:
    # The helper is still in the first world, and was not there later than it.
    (verdict,) = verdicts(
        trainer(blocked(SECOND, 1)), helper(blocked(FIRST, 13), born_s=95.0, made_s=90.0)
    )
    assert (verdict.culprits, verdict.kind) == ((0, 1), Kind.FINISHED_EARLY)
    assert verdict.certainty is Certainty.POSSIBLE  # the other may have made one call too many


def test_a_group_that_was_used_when_it_was_destroyed_is_the_same() -> None:
    # It came a little later to it than the other had noted it, and was left in it.
    (verdict,) = verdicts(
        trainer(blocked(SECOND, 1), ended_s=60.0),
        helper(blocked(FIRST, 13), born_s=89.0, made_s=88.5),
    )
    assert (verdict.culprits, verdict.kind) == ((0, 1), Kind.FINISHED_EARLY)
    assert verdict.certainty is Certainty.POSSIBLE  # the other may have made one call too many


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_rank_that_sat_out_is_in_the_group_that_the_others_are_in(node: str) -> None:
    # Ranks 0 and 2 were in a second world with a substitute; now rank 1 is back.
    three = world(3)
    second, third = replace(three, index=1), replace(three, index=2)
    past = over(three, 90.0, 70.0), over(second, 65.0, 40.5)
    evaluating, waiting = (
        rank(
            number,
            None,
            *calls,
            groups=(*past, used(third, 40.0, calls[-1].seq)),
            born_age_s=100.0,
        )
        for number, calls in ((0, (op(third, 6),)), (2, (blocked(third, 7),)))
    )
    back = rank(
        1,
        None,
        blocked(second, 7),
        groups=(over(three, 90.0, 70.0), used(second, 40.0, 7)),
        born_age_s=100.0,
        node=node,
    )
    (verdict,) = verdicts(evaluating, waiting, back)
    assert (verdict.state, verdict.culprits, verdict.victims) == (State.SLOW, (0,), (1, 2))


def test_a_rank_that_is_slow_to_note_a_group_is_in_it_all_the_same() -> None:
    # It noted its fifth when the other was about to make its sixth, which it has noted, too.
    keys = [replace(PAIR, index=index) for index in (4, 5)]
    quick = rank(
        0,
        None,
        op(keys[1], 1),
        groups=(over(keys[0], 20.0, 19.0), used(keys[1], 18.0, 1)),
        born_age_s=100.0,
    )
    slow = rank(
        1,
        None,
        blocked(keys[1], 2),
        groups=(over(keys[0], 18.1, 18.05), used(keys[1], 18.0, 2)),
        born_age_s=100.0,
    )
    (verdict,) = verdicts(quick, slow)
    assert (verdict.state, verdict.culprits, verdict.victims) == (State.SLOW, (0,), (1,))


def test_worlds_that_were_made_without_waiting_for_each_other_are_compared_as_they_count() -> None:
    # Rank 0 had opened and closed its first (a dry run) before rank 1 was even started.
    first = rank(
        0,
        None,
        op(SECOND, 20),
        groups=(over(FIRST, 90.0, 89.0), used(SECOND, 50.0, 20)),
        born_age_s=100.0,
    )
    second = rank(
        1,
        None,
        blocked(SECOND, 21),
        groups=(over(FIRST, 55.0, 54.0), used(SECOND, 50.0, 21)),
        born_age_s=60.0,
    )
    (verdict,) = verdicts(first, second)
    assert (verdict.state, verdict.culprits, verdict.victims) == (State.SLOW, (0,), (1,))


def test_a_rank_that_is_late_to_make_groups_is_compared_as_it_counts() -> None:
    # NCCL makes a group without waiting: rank 0 made two at once, and rank 1 the first of them
    # half a minute later. What rank 1 is busy with lies between the two.
    first, second = PAIR, replace(PAIR, index=1)
    quick = rank(
        0,
        None,
        op(first, 1),
        blocked(second, 1),
        groups=(used(first, 40.0, 1), used(second, 39.9, 1)),
        born_age_s=100.0,
    )
    late = rank(1, None, op(first, 1), groups=(used(first, 10.0, 1),), born_age_s=100.0)
    (verdict,) = verdicts(quick, late)
    assert (verdict.culprits, verdict.victims) == ((1,), (0,))


def test_a_dry_run_that_comes_late_is_not_taken_for_the_world_after_it() -> None:
    # Neither waited for the other in its first; rank 1 has left that, and makes the next.
    first = rank(
        0,
        None,
        blocked(SECOND, 1),
        groups=(over(FIRST, 54.0, 53.9), used(SECOND, 53.8, 1)),
        born_age_s=60.0,
    )
    second = rank(1, None, groups=(over(FIRST, 50.0, 49.9),), born_age_s=52.0)
    (verdict,) = verdicts(first, second)
    assert (verdict.state, verdict.culprits, verdict.victims) == (State.SLOW, (1,), (0,))


def test_groups_made_by_the_dozen_are_told_apart_where_their_first_are_forgotten() -> None:
    # 93 of the trainer's, of which its page has the last few, and 90 of its helper's.
    def pairs(last: int, calls: int) -> tuple[GroupProgress, ...]:
        past = (
            over(replace(PAIR, index=last - ago), 0.02 * ago + 40.02, 0.02 * ago + 40.01)
            for ago in range(60, 0, -1)
        )
        return (*past, used(replace(PAIR, index=last), 40.02, calls))

    ahead, behind = (replace(PAIR, index=last) for last in (92, 89))
    (verdict,) = verdicts(
        rank(0, None, op(ahead, 1), groups=pairs(92, 1), born_age_s=100.0),
        rank(1, None, blocked(behind, 2), groups=pairs(89, 2), born_age_s=45.0),
    )
    assert (verdict.state, verdict.culprits, verdict.victims) == (State.SLOW, (0,), (1,))


def named(key: GroupKey, name: str, made_s: float, ended_s: float | None = None) -> GroupProgress:
    alive = ended_s is None
    return GroupProgress(key, name, 1, 1, alive=alive, made_age_s=made_s, ended_age_s=ended_s)


def test_groups_that_the_other_has_forgotten_are_none_that_it_knows() -> None:
    # A replaced rank: its groups 0 to 39 are the other's 1 to 40, of which that knows the last 3.
    def key(index: int) -> GroupKey:
        return replace(PAIR, index=index)

    made_s = [50.0 - 0.3 * number for number in range(40)]
    ends_s = [*(age_s - 0.2 for age_s in made_s[:-1]), None]
    mine = tuple(named(key(n), f"{n + 1}", made_s[n], ends_s[n]) for n in range(40))
    theirs = tuple(named(key(n + 1), f"{n + 1}", made_s[n], ends_s[n]) for n in range(37, 40))
    lasting = rank(0, None, blocked(key(40), 2), groups=theirs, born_age_s=100.0)
    asleep = rank(1, None, op(key(39), 1), groups=mine, born_age_s=55.0)
    (verdict,) = verdicts(lasting, asleep)
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (1,))
    assert verdict.state is State.SLOW


def test_a_world_that_was_over_before_the_other_made_its_own_is_not_the_same() -> None:
    # The replacement of rank 1 first met somebody else, for half a second.
    groups = over(FIRST, 51.0, 50.5), used(SECOND, 50.2, 1)
    replacement = rank(1, None, op(SECOND, 1), groups=groups, born_age_s=55.0)
    worlds = [replace(FIRST, index=index) for index in range(4)]
    past = tuple(over(worlds[index], 90.0 - index, 89.5 - index) for index in range(3))
    lasting = rank(
        0,
        None,
        blocked(worlds[3], 2),
        groups=(*past, used(worlds[3], 50.2, 2)),
        born_age_s=100.0,
    )
    (verdict,) = verdicts(lasting, replacement)
    assert (verdict.kind, verdict.culprits, verdict.state) == (
        Kind.NEVER_ENTERED,
        (1,),
        State.SLOW,
    )


def test_a_group_that_was_noted_late_is_the_one_that_the_others_live_in() -> None:
    # A handler of its program took two seconds.
    (verdict,) = verdicts(trainer(op(SECOND, 1)), helper(blocked(FIRST, 2), made_s=48.0))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (0,))
    assert verdict.state is State.SLOW


def test_who_leaves_the_world_before_may_still_come_to_this_one() -> None:
    # Where making a group does not wait for the others, rank 0 is in the next already.
    waiting = rank(
        0,
        None,
        blocked(SECOND, 1),
        groups=(over(FIRST, 90.0, 4.0), used(SECOND, 3.0, 1)),
        born_age_s=100.0,
    )
    between = rank(1, groups=(over(FIRST, 90.0, 4.0),), born_age_s=100.0, phase=Phase.FINALIZING)
    (verdict,) = verdicts(waiting, between)
    assert (verdict.state, verdict.culprits) == (State.SLOW, (1,))
    assert verdict.kind is not Kind.FINISHED_EARLY


def test_a_name_that_c10d_gave_only_once_tells_of_one_group() -> None:
    # Rank 1 is half a second late for the first of two groups; both are made without waiting.
    second = replace(PAIR, index=1)
    quick = rank(
        0,
        None,
        blocked(second, 1),
        groups=(named(PAIR, "1", 10.0, 9.8), named(second, "2", 9.7)),
        born_age_s=100.0,
    )
    late = rank(1, groups=(named(PAIR, "1", 9.5, 9.4),), born_age_s=100.0)
    (verdict,) = verdicts(quick, late)
    assert (verdict.kind, verdict.culprits, verdict.state) == (
        Kind.NEVER_ENTERED,
        (1,),
        State.SLOW,
    )


def test_groups_are_counted_apart_by_what_they_are_known_by() -> None:
    pair = replace(used(PAIR, 45.0, 3), completed=3)
    first = trainer(op(PAIR, 3), blocked(SECOND, 20))
    second = helper(blocked(FIRST, 20))
    (verdict,) = verdicts(
        replace(first, groups=(*first.groups, pair)),
        replace(second, groups=(*second.groups, replace(pair, enqueued=2, completed=2))),
    )
    # Both are in the same all_reduce of their world, so nobody is to blame but what it runs on.
    assert verdict.culprits == ()
