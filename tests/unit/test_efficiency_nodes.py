"""Stragglers of several nodes, from hand-made moments; test_slow_jobs.py has whole jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangwatch.efficiency.nodes import KEPT, NodeMoments, Part, SlowNodes, find_slow

S = 3.0
"""The length of a part."""
BOTH, NONE, FIRST, SECOND = 3, 0, 1, 2
"""Awake ranks of a node of two."""


def node(number: int, *parts: Part, **changes: object) -> NodeMoments:
    """A node of two ranks, whose parts come again and again."""
    ranks = (2 * number, 2 * number + 1)
    told = NodeMoments(f"node-{number}", ranks, S)
    repeated = parts * (KEPT // max(len(parts), 1))
    return replace(told, **{"parts": repeated, **changes})  # type: ignore[arg-type]


def working(waits: int = 10) -> Part:
    """All wait at so many moments of thirty, for data that are on their way."""
    return (NONE, waits, BOTH, 30 - waits)


def held_by(ranks: int, held: int = 12) -> Part:
    """For so many moments some ranks hold up the others of the node."""
    return (NONE, 3, ranks, held, BOTH, 27 - held)


WAITING = working(15)


def test_a_rank_that_nobody_else_is_awake_with() -> None:
    found = find_slow([node(0, WAITING), node(1, held_by(SECOND))])
    assert found.ranks == (3,)
    # Rank 3 waits for its data for a tenth of the time, and the other node for half of it.
    assert found.fraction == pytest.approx(0.4)
    assert (found.host, found.like) == ("node-1", 2)
    assert found.window_s == 20 * S
    assert found.since_s == 30 * S


def test_those_that_a_slow_rank_holds_up_hold_up_the_others() -> None:
    # Ranks 6 and 7 meet in each layer. While rank 7 does something else rank 6 waits for it, and
    # then all others wait for both.
    four, six_waits, pair = 15, 11, 12
    slow = (NONE, 2, pair, 8, six_waits, 8, four, 12)
    other = NodeMoments("node-0", (0, 1, 2, 3), S, KEPT * ((NONE, 10, four, 20),))
    node = NodeMoments("node-1", (4, 5, 6, 7), S, KEPT * (slow,))
    assert find_slow([other, node]).ranks == ()
    found = find_slow([other, replace(node, groups=(3, pair))])
    assert found.ranks == (7,)
    assert found.fraction == pytest.approx(8 / 30)
    # So do the stages of a pipeline, which send each other something.
    assert find_slow([other, replace(node, peers=((6, 7),))]).ranks == (7,)


def test_a_node_that_is_slow_as_a_whole_is_compared_with_another() -> None:
    found = find_slow([node(0, WAITING), node(1, working(3))])
    assert found.ranks == (2, 3)
    assert found.fraction == pytest.approx(0.4)
    assert found.like in (0, 1)


def test_two_that_are_slow_alike_on_two_nodes() -> None:
    found = find_slow([node(0, held_by(FIRST)), node(1, held_by(SECOND))])
    assert found.ranks == (0, 3)
    assert found.fraction == pytest.approx(0.4)


def test_a_rank_that_holds_up_its_node_and_not_the_job_is_none() -> None:
    # The other node is awake all the time.
    assert find_slow([node(0, working(0)), node(1, held_by(SECOND))]).ranks != (3,)


def test_a_job_that_waits_for_its_data_has_none() -> None:
    assert find_slow([node(0, working()), node(1, working())]) == SlowNodes()


def test_nodes_that_wait_for_each_other_by_turns() -> None:
    nodes = [node(0, working(20), working(0)), node(1, working(0), working(20))]
    assert find_slow(nodes).ranks == ()


def test_of_many_nodes_one_may_be_awake_for_another_reason() -> None:
    nodes = [node(number, WAITING) for number in range(40)]
    nodes += [node(40, working(0)), node(41, held_by(FIRST))]
    assert set(find_slow(nodes).ranks) == {80, 81, 82}
    assert find_slow([*nodes[:39], *nodes[40:]]).fraction == pytest.approx(0.4, abs=0.1)


def test_one_that_has_begun_of_late_is_suspected() -> None:
    before, since = [working()] * KEPT, 22
    waits = [*[WAITING] * since, *before][:KEPT]
    slow = [*[held_by(SECOND)] * since, *before][:KEPT]
    nodes = [node(0, parts=tuple(waits)), node(1, parts=tuple(slow))]
    found = find_slow(nodes)
    assert (found.ranks, found.suspected) == ((), True)


def test_turns_that_are_too_few_to_tell() -> None:
    nodes = [node(0, WAITING), node(1, held_by(SECOND))]
    long = [replace(one, turn_parts=5) for one in nodes]
    assert find_slow(long).window_s == 8 * 20 * S  # it takes 19 turns
    longer = [replace(one, turn_parts=20) for one in nodes]
    assert find_slow(longer) == SlowNodes(suspected=True)


def test_parts_without_a_call_are_one_turn() -> None:
    # A call in each sixteenth part: ten turns in the longest window.
    still = tuple(part for part in range(KEPT) if part % 16)
    nodes = [node(0, WAITING, still=still), node(1, held_by(SECOND), still=still)]
    assert find_slow(nodes) == SlowNodes(suspected=True)
    # Another node has issued some in the others.
    nodes.append(node(2, WAITING))
    assert find_slow(nodes).ranks == (3,)


def test_what_happens_once_is_left_out() -> None:
    # For two minutes all wait for rank 3, and nobody issues a call.
    once = range(5, 45)
    still = tuple(once)[:-1]
    slow = [(SECOND, 30) if part in once else working() for part in range(KEPT)]
    waits = [(NONE, 30) if part in once else working() for part in range(KEPT)]
    nodes = [
        node(0, parts=tuple(waits), still=still),
        node(1, parts=tuple(slow), still=still),
    ]
    assert find_slow(nodes) == SlowNodes()
    # Calls that are issued meanwhile make it many times.
    assert find_slow([replace(one, still=()) for one in nodes]).ranks == (3,)


def test_a_window_without_a_call_shows_nothing_yet() -> None:
    still = tuple(range(KEPT))
    nodes = [node(0, WAITING, still=still), node(1, held_by(SECOND), still=still)]
    assert find_slow(nodes) == SlowNodes(suspected=True)
    assert find_slow(nodes, (3,), 20 * S) == SlowNodes(suspected=True)


class TestTheCurrentOnes:
    NODES = (node(0, WAITING), node(1, held_by(SECOND)))

    def test_they_are_over_once_they_cost_nothing(self) -> None:
        slow = tuple([working()] * 20 + [held_by(SECOND)] * (KEPT - 20))
        waits = tuple([working()] * 20 + [WAITING] * (KEPT - 20))
        nodes = [node(0, parts=waits), node(1, parts=slow)]
        assert find_slow(nodes).ranks == (3,)  # a longer window shows them still
        assert find_slow(nodes, (3,), 20 * S) == SlowNodes()
        assert find_slow(nodes, (3,), 40 * S).ranks == (3,)

    def test_they_go_on_while_they_cost_something(self) -> None:
        nodes = [node(0, working(11)), node(1, working(10))]
        assert find_slow(nodes) == SlowNodes()
        assert find_slow(nodes, (2, 3), 20 * S) == SlowNodes(suspected=True)

    def test_others_may_have_become_slow_beside_them(self) -> None:
        assert find_slow(self.NODES, (2,), 20 * S) == SlowNodes()
        assert find_slow(self.NODES, (3,), 20 * S).ranks == (3,)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"unknown": "there are groups of nccl"}, "on node-1, there are groups of nccl"),
        ({"part_s": 1.0}, "the nodes look at different windows (--straggler-window)"),
        ({"parts": (WAITING,) * 19}, "the moments of some of the last minutes are missing"),
        ({"parts": (WAITING, ()) * 10}, "the moments of some of the last minutes are missing"),
    ],
)
def test_why_it_is_not_known(changes: dict[str, object], why: str) -> None:
    nodes = [node(0, WAITING), node(1, held_by(SECOND), **changes)]
    assert find_slow(nodes) == SlowNodes(unknown=why)
    assert find_slow(nodes, (3,), 20 * S) == SlowNodes(unknown=why)


def test_ranks_that_are_on_other_nodes_are_no_bits() -> None:
    assert node(1, WAITING).bits(frozenset({0, 3})) == SECOND
