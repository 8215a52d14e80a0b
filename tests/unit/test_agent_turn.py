"""One caller at a time, and nobody waits."""

from __future__ import annotations

import threading

import pytest

from hangwatch.agent.guard import Ticket, Turn


def test_one_at_a_time_has_the_turn() -> None:
    turn = Turn()
    first, second = Ticket(), Ticket()
    assert turn.take(first)
    assert not turn.take(second)
    assert not turn.take(first)
    first.over = True
    assert turn.take(second)
    second.over = True
    assert turn.take(Ticket())


def test_who_leaves_by_an_exception_loses_the_turn_without_giving_it_back() -> None:
    turn = Turn()

    def interrupted() -> None:
        ticket = Ticket()
        assert turn.take(ticket)
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        ticket = Ticket()
        assert turn.take(ticket)
        ticket.over = True


def test_threads_exclude_each_other() -> None:
    turn = Turn()
    inside: list[int] = []
    had: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        tries = 0
        # No turn is waited for: one that is held while its thread does not run refuses thousands.
        while tries < 3000 or number not in had:
            tries += 1
            ticket = Ticket()
            try:
                if turn.take(ticket):
                    inside.append(number)
                    most.append(len(inside))
                    had.append(number)
                    inside.pop()
            finally:
                ticket.over = True

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert set(had) == {0, 1, 2, 3}
