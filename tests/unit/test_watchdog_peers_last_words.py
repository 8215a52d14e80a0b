"""What the other nodes say when a rank fails, as old as it is when it is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from snapshots import W, blocked, raised, rank

from hangwatch.watchdog.peers.connection import LastWords, aged
from hangwatch.watchdog.peers.exchange import Exchange
from hangwatch.watchdog.peers.messages import Gathered, Local, Published

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Others:
    """Stands for the exchange with other nodes: keeps what is published."""

    def __init__(self, owner: tuple[bool, ...] = (True,), *, tells: bool = True) -> None:
        """Whether the question of this node was the first, each time that it asks."""
        self.asked = 0
        self.published: list[Published] = []
        self._owner = owner
        self._tells = tells

    def is_told(self) -> bool:
        return self.asked > 0 and self._tells

    async def ask(self, *, full: bool) -> Gathered:
        assert not full
        self.asked += 1
        failed = Local((rank(3, **raised("ValueError")),))
        return Gathered(self._owner[self.asked - 1], self.asked, (failed,))

    async def publish(self, number: int, published: Published) -> None:
        assert number == self.asked
        self.published.append(published)


def run(others: Others, act: Callable[[LastWords], Awaitable[Gathered | None]]) -> Gathered | None:
    async def work() -> Gathered | None:
        words = LastWords(conclude, others.is_told)
        for _ in range(2):
            words.ask(cast("Exchange", others))
        return await act(words)

    async def conclude(gathered: Gathered) -> Published:
        return Published(f"of {len(gathered.others)}", ())

    return asyncio.run(work())


def test_the_others_are_asked_once_and_told_what_comes_of_it() -> None:
    others = Others()
    gathered = run(others, lambda words: words.heard(5.0))
    assert gathered is not None
    assert gathered.others[0].ranks[0].rank == 3
    assert (others.asked, others.published) == (1, [Published("of 1", ())])


def test_what_another_node_has_asked_is_not_ours_to_tell() -> None:
    others = Others((False,))
    assert run(others, lambda words: words.heard(5.0)) is None
    assert (others.asked, others.published) == (1, [])


def test_what_another_node_was_not_sure_of_is_asked_by_this_one() -> None:
    others = Others((False, True), tells=False)
    assert run(others, lambda words: words.heard(5.0)) is not None
    assert (others.asked, others.published) == (2, [Published("of 1", ())])


def test_who_is_not_the_first_twice_leaves_it_at_that() -> None:
    others = Others((False, False), tells=False)
    assert run(others, lambda words: words.heard(5.0)) is None
    assert (others.asked, others.published) == (2, [])


def test_who_was_not_asked_says_nothing() -> None:
    unused: Any = None
    assert asyncio.run(LastWords(unused, unused).heard(5.0)) is None


def test_nothing_is_left_of_ranks_that_were_started_anew() -> None:
    async def forgotten(words: LastWords) -> Gathered | None:
        words.forget()
        return await words.heard(5.0)

    assert run(Others(), forgotten) is None


def test_all_ages_grow_and_what_never_was_does_not() -> None:
    waiting = blocked(W, 5, age=2.0)
    before = rank(3, W, waiting, **raised("ValueError", age=1.0))
    after = aged(before, 10.0)
    assert after.process.gone_age_s == pytest.approx(11.0)
    assert after.exception_age_s == pytest.approx(11.0)
    assert after.ops[0].issued_age_s == after.ops[0].blocked_age_s == pytest.approx(12.0)
    assert aged(rank(0, W), 10.0).pending_age_s is None
    assert aged(rank(0, W), 10.0).process.gone_age_s is None
