"""Keeps our errors from the user program, and our locks from making it wait."""

from __future__ import annotations

import weakref

from hangwatch.safety.foreign import is_foreign

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

LIMIT = 5
"""Swallowed errors after which something is wrong with us, and we stop."""


class Guard:
    """``with guard:`` around our own statements: what they raise never gets out.

    Only Exception is swallowed, and not what is meant for the user's code: that of a
    signal handler which happened to interrupt us, or of another thread. count is called
    for each swallowed error, disarm once with the reason, keep with each error.
    """

    def __init__(
        self,
        count: Callable[[], object] = lambda: None,
        disarm: Callable[[str], object] = lambda _: None,
        keep: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        self._count = count
        self._disarm = disarm
        self._keep = keep
        self.swallowed = 0
        self.last = ""
        """The last swallowed error, for people."""

    @property
    def open(self) -> bool:
        """True until LIMIT errors were swallowed."""
        return self.swallowed < LIMIT

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Swallow an Exception of ours; all else goes its way."""
        if error is None or not isinstance(error, Exception) or is_foreign(error):
            return False
        self.swallow(error)
        return True

    def swallow(self, error: Exception) -> None:
        """Count an error of ours that was kept from the job; raises none of ours."""
        self.swallowed += 1
        try:
            self.last = f"{type(error).__name__}: {error}"
            self._count()
            self._keep(error)
            if self.swallowed == LIMIT:
                self._disarm(f"{LIMIT} errors of our own, the last of them {self.last}")
        except Exception as another:
            if is_foreign(another):
                raise
            self.swallowed = max(self.swallowed, LIMIT)


class Ticket:
    """Kept in a local variable of the function that has the turn, and ended in its finally."""

    over = False


class _Mark:
    """A turn that is taken, or was; ``__dict__["next"]`` is the one after, if there is one."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = weakref.ref(ticket)

    @property
    def held(self) -> bool:
        ticket = self._ticket()
        return ticket is not None and not ticket.over


class Turn:
    """At most one caller has it, of all threads, signal handlers and finalizers.

    A signal handler or a finalizer may reach a point of the very thread that has the
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
        """Take the turn until the ticket is over, or gone; return False if it is taken."""
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
