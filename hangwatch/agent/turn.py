"""Lets one caller at a time do something, and never makes another one wait."""

from __future__ import annotations

import weakref


class Ticket:
    """Kept in a local variable of the function that has the turn, and ended in its finally."""

    over = False


class _Mark:
    """A turn that somebody has, or had; ``__dict__["next"]`` is the one after, if there is one."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = weakref.ref(ticket)

    @property
    def held(self) -> bool:
        ticket = self._ticket()
        return ticket is not None and not ticket.over


class Turn:
    """At most one caller has it, of all threads, signal handlers and finalizers.

    A signal handler or a finalizer may come to a point of the very thread that has the
    turn, so that waiting for it would be waiting for ever; and what a handler raises may
    strike between any two statements. So a turn is not given back but ends with its
    ticket, which an exception takes along at the latest. Each mark gets one successor,
    chosen by dict.setdefault, which is atomic.

        ticket = Ticket()
        try:
            if turn.take(ticket):
                ...
        finally:
            ticket.over = True
    """

    def __init__(self) -> None:
        self._last = _Mark(Ticket())

    def take(self, ticket: Ticket) -> bool:
        """Take the turn until the ticket is over, or gone; return False if somebody else has it."""
        mine = _Mark(ticket)
        while True:
            # Not on from one mark to the next: a handler may add them faster than we walk.
            mark = self._last
            if mark.held:
                return False
            following: _Mark = mark.__dict__.setdefault("next", mine)
            if following is mine:
                self._last = mine
                return True
            if self._last is mark:
                self._last = following
