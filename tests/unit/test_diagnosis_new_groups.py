"""Verdicts on ranks that made other groups than the others, by what each called new_group for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snapshots import W, blocked, frame, job, main_thread, only, op, rank, site, source

from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, What
from hangwatch.model.snapshot import GroupProgress, NewGroup, OpRecord, RankSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAIRS = {9: (0, 2), 10: (1, 3), 11: (0, 1), 12: (2, 3)}
"""Line to the members of the group that it makes."""
MESH = {9: (0, 1), 10: (2, 3)}
SOURCE = """\
import torch.distributed as dist


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    pairs = {}
    if rank != 2:
        pairs["a"] = dist.new_group([0, 2])
    pairs["b"] = dist.new_group([1, 3])
    pairs["c"] = dist.new_group([0, 1])
    pairs["d"] = dist.new_group([2, 3])
    dist.all_reduce(weights)
"""


def called(*lines: int, members: Mapping[int, tuple[int, ...]] = PAIRS) -> tuple[NewGroup, ...]:
    """Calls of new_group at some lines, the last one 20 s ago."""
    return tuple(
        NewGroup(index, index + 1, GroupKey(members[line]), site(line), 19.0 + len(lines) - index)
        for index, line in enumerate(lines)
    )


def making(
    number: int,
    *lines: int,
    members: Mapping[int, tuple[int, ...]] = PAIRS,
    before: Sequence[OpRecord] = (),
) -> RankSnapshot:
    """A rank that waits in the last of its calls."""
    call: dict[str, Any] = {"in_call": "new_group", "in_call_age_s": 20.0}
    made = called(*lines, members=members)
    return rank(number, W, *before, in_call_site=made[-1].site, new_groups=made, **call)


def sleeping(number: int, *calls: OpRecord) -> RankSnapshot:
    """A rank that is busy with something else."""
    return rank(number, W, *calls, threads=main_thread(frame(40, "load")))


def member(
    number: int, pair: GroupKey, calls: tuple[NewGroup, ...], *ops: OpRecord
) -> RankSnapshot:
    """A rank that has made the group of its pair, the first that it made."""
    entered = sum(record.group == W for record in ops)
    groups = (
        GroupProgress(W, "0", entered, -1, by_python=entered),
        GroupProgress(pair, "1", 1, -1, by_python=1),
    )
    return rank(number, W, *ops, groups=groups, new_groups=calls)


def test_the_one_that_left_out_a_group_is_named_where_each_waits_in_another() -> None:
    # Rank 2 calls second what is third for rank 3: they do not meet, and nobody meets rank 0.
    ranks = [making(0, 9), making(1, 9, 10, 11), making(2, 10, 11, 12), making(3, 9, 10, 11, 12)]
    verdict = only(job(*ranks, **source(SOURCE)))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (2,))
    assert verdict.victims == (0, 1, 3)
    assert verdict.headline == (
        "Rank 2 called new_group for ranks 1 and 3 at train.py:10, but ranks 0, 1 and 3 called "
        "new_group for ranks 0 and 2 at train.py:9."
    )
    assert verdict.cause is not None
    assert verdict.cause.site is not None
    assert (verdict.cause.what, verdict.cause.site.line) == (What.RANK_CONDITION, 8)


def test_without_the_calls_of_new_group_nobody_is_sure_to_have_left_one_out() -> None:
    ranks = [making(0, 9), making(1, 9, 10, 11), making(2, 10, 11, 12), making(3, 9, 10, 11, 12)]
    verdict = only(job(*[replace(one, new_groups=()) for one in ranks], **source(SOURCE)))
    assert verdict.certainty is Certainty.POSSIBLE
    assert 2 in verdict.culprits


def test_only_members_are_waited_for_in_a_group() -> None:
    # Rank 3 is no member, and has its own reason not to be there.
    making_it = [making(n, 9, members={9: (0, 1, 2)}) for n in (0, 1)]
    verdict = only(job(*making_it, sleeping(2), sleeping(3)))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (2,))


def test_where_others_wait_too_all_ranks_are_waited_for() -> None:
    # Torch does so where it is asked for a barrier after each new_group.
    pair = {9: (0, 1)}
    verdict = only(job(*[making(n, 9, members=pair) for n in (0, 1, 2)], sleeping(3)))
    assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (3,))


def test_a_member_that_has_come_through_is_not_missing() -> None:
    trio = {9: (0, 1, 2), 10: (0, 1, 2, 3)}
    through = rank(0, W, new_groups=called(9, members=trio))
    verdict = only(job(through, making(1, 9, members=trio), sleeping(2), sleeping(3)))
    assert verdict.culprits == (2,)


def test_one_list_in_two_orders_is_told_at_its_line() -> None:
    def at_one_line(number: int, *groups: tuple[int, ...]) -> RankSnapshot:
        made = tuple(
            NewGroup(index, index + 1, GroupKey(members), site(9), 19.0 + len(groups) - index)
            for index, members in enumerate(groups)
        )
        call: dict[str, Any] = {"in_call": "new_group", "in_call_age_s": 20.0}
        return rank(number, W, in_call_site=site(9), new_groups=made, **call)

    a, b = (0, 1), (2, 3)
    ranks = [at_one_line(0, a), at_one_line(1, a), at_one_line(2, a, b), at_one_line(3, b)]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.certainty) == ((3,), Certainty.LIKELY)
    assert verdict.cause is not None
    assert verdict.cause.what is What.GROUP_CREATION
    assert verdict.headline.count("train.py:9") == 1


def test_two_groups_of_one_number_do_not_come_of_the_network() -> None:
    # Each pair makes its own group alone, below one name.
    ranks = [making(n, 9, members={9: (0, 1)}) for n in (0, 1)]
    ranks += [making(n, 10, members={10: (2, 3)}) for n in (2, 3)]
    for verdict in (only(job(*ranks)), only(job(*ranks[::-1]))):
        assert (verdict.kind, verdict.culprits) == (Kind.INIT_INCOMPLETE, (0, 1, 2, 3))
        assert verdict.certainty is Certainty.POSSIBLE
        assert "under one name" in verdict.headline


def test_who_left_a_group_out_is_possible_where_as_many_made_it() -> None:
    trio = {9: (0, 1, 2)}
    first = op(W, 1, line=7, age=40.0)
    ranks = [making(n, 9, members=trio, before=[first]) for n in (0, 1)]
    ranks += [rank(n, W, first, blocked(W, 2, line=13)) for n in (2, 3)]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.victims) == ((2, 3), (0, 1))
    assert verdict.certainty is Certainty.POSSIBLE
    assert verdict.headline == (
        "Ranks 2 and 3 called all_reduce at train.py:13, but ranks 0 and 1 called new_group for "
        "ranks 0-2 at train.py:9."
    )


def test_who_left_a_group_out_is_likely_where_most_made_it() -> None:
    pair = {9: (0, 1)}
    first = op(W, 1, line=7, age=40.0)
    ranks = [making(n, 9, members=pair, before=[first]) for n in (0, 1, 2)]
    verdict = only(job(*ranks, rank(3, W, first, blocked(W, 2, line=13))))
    assert (verdict.culprits, verdict.certainty) == ((3,), Certainty.LIKELY)


def test_members_that_were_let_into_a_wrong_group_get_stuck_in_it() -> None:
    # Rank 3 made its group first: rank 0 was wired to it, and nobody answers rank 1.
    pairs = [GroupKey((0, 1)), GroupKey((2, 3))]
    in_order, other = called(9, 10, members=MESH), called(10, 9, members=MESH)
    made = replace(blocked(pairs[0], 1, line=13), state=OpState.DONE, blocked_age_s=None)
    ranks = [
        member(0, pairs[0], in_order, made, blocked(W, 1, line=14)),
        member(1, pairs[0], in_order, blocked(pairs[0], 1, line=13)),
        making(2, 9, 10, members=MESH),
        member(3, pairs[1], other, replace(made, group=pairs[1]), blocked(W, 1, line=14)),
    ]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.certainty) == ((3,), Certainty.LIKELY)
    assert verdict.headline == (
        "Rank 3 called new_group for ranks 2 and 3 at train.py:10, but ranks 0-2 called "
        "new_group for ranks 0 and 1 at train.py:9."
    )


def test_groups_of_a_job_that_makes_none_now_accuse_nobody() -> None:
    # Rank 0 has a group more, in which it is alone: that is why nothing is stuck.
    first = rank(0, W, op(W, 1, line=13), blocked(W, 2, line=13), new_groups=called(9, 10))
    others = [
        rank(n, W, op(W, 1, line=13), blocked(W, 2, line=13), new_groups=called(9)) for n in (1, 2)
    ]
    verdict = only(job(first, *others, sleeping(3, op(W, 1, line=13))))
    assert (verdict.kind, verdict.culprits) == (Kind.NEVER_ENTERED, (3,))
