"""What a node tells of its moments, and when the nodes are asked."""

from __future__ import annotations

from random import Random

import pytest

from hangwatch.efficiency.node_watch import NodeWatch, Waited
from hangwatch.efficiency.nodes import KEPT, MOST_RANKS, SlowNodes
from hangwatch.efficiency.straggler_watch import StragglerWatch
from hangwatch.model.report import Straggler, Why

WINDOW_S = 60.0
RANKS = (4, 5)


class Node:
    """A node of two ranks; the second one waits for some share of the time."""

    def __init__(self) -> None:
        self.watch = NodeWatch(WINDOW_S)
        self.chance = Random(1)  # noqa: S311 (chance that can be repeated)
        self.now_s = 0.0
        self.place = 0

    def run(self, seconds: float, waits: float, found: SlowNodes = SlowNodes()) -> int:  # noqa: B008 (it is frozen)
        """Go on, and ask whenever that is wanted; return how often it was."""
        asked, end_s = 0, self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.1
            self.place += 1
            awake = {4} if self.chance.random() < waits else {4, 5}
            self.watch.add(self.now_s, RANKS, frozenset(awake), self.place)
            if self.watch.wants(self.now_s):
                asked += 1
                self.watch.asked(self.now_s)
                self.watch.concluded(found)
        return asked


def test_what_a_node_tells() -> None:
    watch = NodeWatch(WINDOW_S, groups=[frozenset({4, 5}), frozenset({5})], peers={(5, 7)})
    for at_s, awake, place in ((0.5, {4, 5}, 3), (3.5, {5}, 3), (3.6, {5}, 3), (6.4, set(), 8)):
        watch.add(at_s, RANKS, frozenset(awake), place)
    told = watch.moments("node-a", 7.0, "")
    assert (told.host, told.ranks, told.part_s) == ("node-a", RANKS, 3.0)
    assert told.parts == ((0, 1, 2, 2), (3, 1))
    assert told.still == (1,)
    assert told.turn_parts == 3
    assert told.groups == (2,)
    assert told.peers == ((5, 7),)
    assert told.unknown == ""


def test_it_tells_no_more_than_is_asked_for() -> None:
    node = Node()
    node.run(10 * WINDOW_S, 0.3)
    assert len(node.watch.moments("a", 0.0, "").parts) == KEPT
    node.watch.forget_before(node.now_s - 30)
    assert len(node.watch.moments("a", 0.0, "").parts) == 10
    node.watch.forget()
    assert node.watch.moments("a", 0.0, "").unknown == "it has noted no moments"


def test_other_ranks_begin_anew() -> None:
    watch = NodeWatch(WINDOW_S)
    watch.add(1.0, (4, 5), frozenset({4}), 1)
    watch.add(40.0, (4,), frozenset({4}), 2)
    told = watch.moments("a", 0.0, "")
    assert (told.ranks, told.parts) == ((4,), ((1, 1),))


@pytest.mark.parametrize(
    ("ranks", "unknown", "why"),
    [
        (RANKS, "some ranks have ended", "some ranks have ended"),
        (tuple(range(MOST_RANKS + 1)), "", f"there are more than {MOST_RANKS} ranks"),
    ],
)
def test_why_a_node_tells_nothing(ranks: tuple[int, ...], unknown: str, why: str) -> None:
    watch = NodeWatch(WINDOW_S)
    watch.add(1.0, ranks, frozenset(ranks), 1)
    told = watch.moments("a", 0.0, unknown)
    assert (told.parts, told.unknown) == ((), why)


def test_while_nobody_waits_nobody_asks() -> None:
    assert Node().run(10 * WINDOW_S, 0.0) == 0


def test_one_question_is_enough_while_nothing_changes() -> None:
    node = Node()
    assert node.run(1.5 * WINDOW_S, 0.4) == 0
    assert node.run(60 * WINDOW_S, 0.4) == 1


def test_a_change_is_worth_a_question() -> None:
    node = Node()
    node.run(10 * WINDOW_S, 0.2)
    assert node.run(1.2 * WINDOW_S, 0.6) >= 1


def test_where_it_changes_all_the_time_they_are_asked_less_and_less() -> None:
    node = Node()
    asked = [
        sum(node.run(WINDOW_S, waits) for _ in range(20) for waits in (0.1, 0.7)) for _ in range(3)
    ]
    assert asked[0] > asked[1] == asked[2]
    assert asked[2] <= 40 / 8


@pytest.mark.parametrize(
    "found", [SlowNodes((4,), 0.3), SlowNodes(suspected=True), SlowNodes(unknown="no store")]
)
def test_what_is_to_be_told_or_not_known_is_asked_again(found: SlowNodes) -> None:
    node = Node()
    first = node.run(6 * WINDOW_S, 0.4, found)
    assert 3 <= first <= 8
    node.run(60 * WINDOW_S, 0.4, found)
    assert node.run(16 * WINDOW_S, 0.4, found) == 2


def test_news_make_it_quick_again() -> None:
    node = Node()
    node.run(60 * WINDOW_S, 0.4, SlowNodes(suspected=True))
    node.run(9 * WINDOW_S, 0.4, SlowNodes((4,), 0.3))
    assert node.run(2 * WINDOW_S, 0.4, SlowNodes((4,), 0.3)) >= 1


class TestWaited:
    def test_a_change_has_to_be_sure(self) -> None:
        assert not Waited((0.5,), 100).differ(Waited((0.4,), 100))
        assert Waited((0.5,), 10_000).differ(Waited((0.4,), 10_000))

    def test_a_small_one_is_none(self) -> None:
        assert not Waited((0.5,), 10**6).differ(Waited((0.46,), 10**6))

    def test_before_the_first_nobody_has_waited(self) -> None:
        assert Waited().differ(Waited((0.4,), 600))
        assert not Waited().differ(Waited((0.04,), 600))


def test_the_cost_is_that_of_all_windows_in_their_time() -> None:
    watch = StragglerWatch(20.0)

    def hear(now_s: float, fraction: float) -> Straggler | None:
        found = Straggler((1,), fraction, 100.0, now_s, Why())
        return watch.hear(found, now_s, window_s=20.0)

    assert hear(now_s=110.0, fraction=0.2) is not None  # half of the window lies before their time
    assert watch.current is not None
    assert watch.current.fraction == 0.2
    for now_s, fraction in ((130.0, 0.4), (150.0, 0.6)):
        assert hear(now_s, fraction) is None
    assert watch.current.fraction == pytest.approx(0.5)
    assert watch.current.until_s == 150.0
