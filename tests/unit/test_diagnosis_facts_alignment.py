"""Who left the common program, by the calls of all ranks alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from snapshots import DP, PAIR, SCRIPT, TP, W, job, op, rank, world

from hangwatch.diagnosis.facts.alignment import Departures, departures
from hangwatch.diagnosis.facts.endings import endings
from hangwatch.diagnosis.facts.job import index
from hangwatch.diagnosis.source.files import Source
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Phase
from hangwatch.model.snapshot import ProcessState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangwatch.model.snapshot import OpRecord, RankSnapshot

ENDED: dict[str, Any] = {
    "phase": Phase.EXITED,
    "process": ProcessState(alive=False, exit_code=0),
}
TRIO = world(3)
LINES = {letter: 10 + number for number, letter in enumerate("abcdxyz")}


def calls(letters: str, group: GroupKey = W, first: int = 1) -> list[OpRecord]:
    """An all_reduce for each letter, a gather for a capital, each letter at a line of its own."""
    return [
        op(group, seq, "gather" if letter.isupper() else "all_reduce", line=LINES[letter.lower()])
        for seq, letter in enumerate(letters, first)
    ]


def knowing(snapshot: RankSnapshot, **by_python: int) -> RankSnapshot:
    """The rank, with how many calls Python made in each group: as many as are known, else said."""
    made = {
        group.key: sum(
            o.source == "page" and not o.p2p and o.group == group.key for o in snapshot.ops
        )
        for group in snapshot.groups
    }
    groups = tuple(
        replace(group, by_python=by_python.get(group.key.desc, made[group.key]))
        for group in snapshot.groups
    )
    return replace(snapshot, groups=groups)


def left(ranks: Sequence[RankSnapshot], text: str = "") -> Departures:
    found = index(job(*ranks))
    source = Source({SCRIPT: text} if text else {})
    return departures(found, endings(found), source, found.ranks)


def ways(*letters: str, **fields: Any) -> list[RankSnapshot]:
    """Ranks that made these calls of the default group."""
    key = world(len(letters))
    return [knowing(rank(n, key, *calls(way, key), **fields)) for n, way in enumerate(letters)]


@pytest.mark.parametrize(
    ("odd", "usual"),
    [
        pytest.param("abab" + "b", "ababa", id="left one out"),
        pytest.param("abcabc" + "d", "abcabca", id="made one more"),
        pytest.param("ba", "ab", id="made two the other way round"),
        pytest.param("abX", "aby", id="made another one"),
    ],
)
def test_one_of_three_that_parts_from_both_others_has_left(odd: str, usual: str) -> None:
    found = left(ways(usual, odd, usual))
    assert (set(found.ranks), set(found.by_habit), set(found.tied)) == ({1}, set(), set())


def test_one_that_is_behind_has_left_nothing() -> None:
    assert left(ways("abab", "a", "abab")) == Departures()


def test_one_that_has_ended_where_others_go_on_has_left() -> None:
    key = world(3)
    early = knowing(rank(2, key, *calls("abab", key), **ENDED))
    found = left([*ways("ababa", "ababa", "abab")[:2], early])
    assert found.ranks == {2}


def test_one_that_goes_on_where_others_have_ended_has_left() -> None:
    key = world(3)
    ranks = [knowing(rank(n, key, *calls("ab", key), **ENDED)) for n in (0, 1)]
    assert left([*ranks, knowing(rank(2, key, *calls("aba", key)))]).ranks == {2}


def test_of_two_either_may_have_left() -> None:
    found = left(ways("abX", "aby"))
    assert (set(found.ranks), set(found.tied)) == (set(), {0, 1})


def test_of_two_the_one_that_does_out_of_turn_what_it_knows_has_left() -> None:
    found = left(ways("abcabca", "abcabcb"))
    assert (set(found.ranks), set(found.by_habit)) == ({1}, {1})


def test_one_of_several_equal_calls_in_a_row_tells_nothing_of_what_comes_next() -> None:
    assert left(ways("Aaab" + "Aaab" + "AaaA", "Aaab" + "Aaab" + "Aaab")).ranks == {0}
    assert left(ways("Aaa" + "A", "Aaa" + "a")).tied == {0, 1}


def test_a_rank_that_goes_its_new_way_again_and_again_may_be_right() -> None:
    found = left(ways("abcabcabc", "abcabcbcbcbc"))
    assert (set(found.ranks), set(found.tied)) == (set(), {0, 1})


LOOP = """
def main():
    for step in range(9):
        if swapped(step):
            dist.all_reduce(y, group=dp)
            dist.all_reduce(x, group=tp)
        else:
            dist.all_reduce(x, group=tp)
            dist.all_reduce(y, group=dp)
    dist.all_reduce(z, group=dp)
"""


def _swapping(line: int) -> list[RankSnapshot]:
    """Of two ranks in two groups one comes to the second group first, at a line that is new."""
    tp, dp = GroupKey((0, 1), "tp"), GroupKey((0, 1), "dp")
    turns = [c for n in (1, 2, 3) for c in (op(tp, n, line=8), op(dp, n, line=9))]
    return [
        knowing(rank(0, tp, *turns, op(tp, 4, line=8))),
        knowing(rank(1, tp, *turns, op(dp, 4, line=line))),
    ]


def test_a_call_that_is_only_at_another_line_of_the_loop_is_known() -> None:
    assert left(_swapping(5), LOOP).ranks == {1}


@pytest.mark.parametrize(("line", "text"), [(10, LOOP), (5, "")])
def test_a_call_after_the_loop_or_in_a_text_that_is_not_known_is_not(line: int, text: str) -> None:
    assert left(_swapping(line), text).tied == {0, 1}


def test_two_lines_of_one_call_each_of_one_rank_are_no_difference() -> None:
    # if rank == 0: broadcast(x) else: broadcast(y)
    assert left(ways("xaxa", "yaya", "yayab")) == Departures()


def test_a_group_that_is_not_for_both_is_left_out() -> None:
    ranks = [
        knowing(rank(n, W, *calls("a"), *calls("b", TP[n // 2]), *calls("c", W, 2)))
        for n in (0, 1, 2)
    ]
    alone = knowing(rank(3, W, *calls("ac")))
    assert left([*ranks, alone]) == Departures()
    member = replace(ranks[2].groups[1], enqueued=0, completed=0, by_python=0)
    assert left([*ranks, replace(alone, groups=(*alone.groups, member))]).ranks == {3}


def test_replicas_are_compared_though_they_share_no_group() -> None:
    ranks = [knowing(rank(n, DP[n % 2], *calls("abab", DP[n % 2]))) for n in (0, 1, 2)]
    ranks.append(knowing(rank(3, DP[1], *calls("abb", DP[1]))))
    assert left(ranks).ranks == {3}


def test_stages_of_a_pipeline_are_not_compared_where_they_share_no_group() -> None:
    # 1F1B: the first stage makes its two forward passes before it comes back.
    def stage(number: int, letters: str) -> RankSnapshot:
        peer = op(W, 1, "send" if number < 2 else "recv", peer=number ^ 2, line=30)
        return knowing(rank(number, W, peer, *calls(letters, TP[number // 2])))

    assert left([stage(0, "aabb"), stage(1, "aabb"), stage(2, "abab"), stage(3, "abab")]) == (
        Departures()
    )


def test_a_ring_that_has_wrapped_is_compared_from_a_place_of_both() -> None:
    usual = knowing(rank(0, TRIO, *calls("abcabca", TRIO)))
    wrapped = knowing(rank(1, TRIO, *calls("cabca", TRIO, 3)), default_pg=7)
    odd = knowing(rank(2, TRIO, *calls("cabcb", TRIO, 3)), default_pg=7)
    assert left([usual, wrapped]) == Departures()
    assert left([usual, wrapped, odd]).ranks == {2}


def test_ranks_of_which_no_place_of_both_is_known_are_not_compared() -> None:
    one = knowing(rank(0, PAIR, *calls("ab", PAIR)))
    other = knowing(rank(1, PAIR, *calls("ca", PAIR, 3)), default_pg=4)
    assert left([one, other]) == Departures()


def test_a_call_that_is_not_known_any_more_is_not_left_out() -> None:
    usual = [knowing(rank(n, TRIO, *calls("abc", TRIO))) for n in (0, 1)]
    hole = rank(2, TRIO, *calls("a", TRIO), *calls("c", TRIO, 3))
    assert left([*usual, knowing(hole, default_pg=3)]) == Departures()
    newest_lost = rank(2, TRIO, *calls("a", TRIO), enqueued=3)
    assert left([*usual, knowing(newest_lost, default_pg=3)]) == Departures()


def test_what_cpp_issues_counts_only_where_both_have_recorded_it() -> None:
    def training(number: int, sizes: Sequence[int], *, flight: bool) -> RankSnapshot:
        buckets = [op(TRIO, n, source="flight", shape=(size,)) for n, size in enumerate(sizes, 1)]
        after = op(TRIO, 9, line=40)
        return knowing(rank(number, TRIO, *(buckets if flight else ()), after, flight=flight))

    usual, odd = (10, 11, 12, 10, 11, 12, 10, 11), (10, 11, 12, 11, 12, 10, 11, 12)
    ranks = [training(n, usual, flight=True) for n in (0, 1)]
    assert left([*ranks, training(2, odd, flight=True)]).ranks == {2}
    assert left([*ranks, training(2, odd, flight=False)]) == Departures()


def test_a_call_that_the_page_has_forgotten_is_not_taken_for_one_of_cpp() -> None:
    # The recorder still has it, without its line.
    forgotten = [op(PAIR, 1, source="flight"), *calls("b", PAIR, 2)]
    ranks = [
        knowing(rank(0, PAIR, *calls("ab", PAIR), flight=True)),
        knowing(rank(1, PAIR, *forgotten, flight=True), default_pg=2),
    ]
    assert left(ranks) == Departures()


def test_a_group_that_two_threads_use_has_no_order() -> None:
    def saving(number: int, first: str) -> RankSnapshot:
        order = {"main": (1000 + number, 77), "other": (77, 1000 + number)}[first]
        lines = {1000 + number: 10, 77: 50}
        made = [op(TRIO, n, line=lines[thread], thread=thread) for n, thread in enumerate(order, 1)]
        return knowing(rank(number, TRIO, *made))

    assert left([saving(0, "main"), saving(1, "other"), saving(2, "main")]) == Departures()


def test_another_thread_in_a_group_of_its_own_is_left_out() -> None:
    aside = GroupKey((0, 1, 2), "logging")

    def logging(number: int, at: int) -> RankSnapshot:
        made = [replace(one, thread=1000 + number) for one in calls("abab", TRIO)]
        made.insert(at, op(aside, 1, line=60, thread=77))
        return knowing(rank(number, TRIO, *made))

    assert left([logging(0, 1), logging(1, 3), logging(2, 2)]) == Departures()


def test_who_has_destroyed_a_group_in_which_others_go_on_has_left_it() -> None:
    def epochs(number: int, last: int, *, over: bool) -> RankSnapshot:
        keys = [GroupKey((0, 1, 2), "", n) for n in range(3)]
        made = [c for key in keys[:2] for c in calls("aaaa", key)] + calls("a" * last, keys[2])
        snapshot = knowing(rank(number, keys[0], *made))
        groups = tuple(
            replace(group, alive=group.key == keys[2] and not over) for group in snapshot.groups
        )
        return replace(snapshot, groups=groups)

    assert left([epochs(0, 4, over=False), epochs(1, 3, over=True)]).ranks == {1}
    found = left([epochs(n, 4, over=False) for n in (0, 2)] + [epochs(1, 3, over=True)])
    assert found.ranks == {1}


def test_where_most_part_from_each_other_nobody_has_left() -> None:
    assert left(ways("ax", "by", "cz")).ranks == frozenset()


def test_a_parting_tells_what_both_did_from_there_on() -> None:
    found = left(ways("abab", "abab", "abb"))
    (divergence,) = found.divergences
    mine, theirs = divergence.seen_by(2)
    assert [made.step.line for made in mine] == [11]
    assert [made.step.line for made in theirs] == [10, 11]
    assert [step.line for step in divergence.before] == [10, 11]
    assert divergence.pairs == 2
