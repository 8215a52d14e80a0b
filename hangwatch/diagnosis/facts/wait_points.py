"""The points at which ranks wait.

They are tuples, which are made and hashed in a fraction of a dataclass's time: a large job
has hundreds of thousands of them.
"""

from __future__ import annotations

from typing import NamedTuple

from hangwatch.model.calls import Site
from hangwatch.model.snapshot import OpRecord

ANYONE = -1
"""The peer of a recv from any source."""
UNNAMED = "collective"
"""The name of a call of an unknown operation: C++ issued it, and no recorder has it."""
STORE = "store"
"""Instead of a set-up call: a key of a store."""


class Slot(NamedTuple):
    """The ``seq``-th collective of a group, 0 where it is not known which."""

    gid: int
    seq: int


class Channel(NamedTuple):
    """A point-to-point call of ``waiter`` that ``peer``, or ``ANYONE``, has to match."""

    gid: int
    waiter: int
    peer: int
    sends: bool
    """The waiter sends; otherwise it receives."""
    tag: int
    turn: int
    """The number of unfinished calls like it that the waiter made before it."""
    nth: int
    """The number of all calls like it that the waiter made before it, -1 if unknown."""


class Setup(NamedTuple):
    """A call in which ranks wait for each other, and not a collective of a group.

    Of new_group: the number below which the members of the group meet, and the group (only its
    members, as a key); if these are not known, the line that makes it. Of STORE: ``where`` has
    the awaited keys, one a line.
    """

    call: str
    where: str = ""
    number: int = 0
    gid: int = -1

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a store that are waited for."""
        return tuple(self.where.splitlines()) if self.call == STORE else ()


WaitPoint = Slot | Channel | Setup


class Wait(NamedTuple):
    """A rank that waits at a wait point."""

    rank: int
    wait_point: WaitPoint
    age_s: float
    is_blocked: bool
    """It is known to be blocked; otherwise only its unfinished work is known."""
    op: str = ""
    record: OpRecord | None = None
    site: Site | None = None
    ended: bool = False
    """It waited until it ended, or until the call raised."""
    in_thread: bool = False
    """Another thread waits, while the program of the rank is elsewhere."""
    inferred: bool = False
    """Only counters show it: its group and its slot are inferred."""
    connects: bool = False
    """It waits only for its connection to the peer: the call returns before there is a message."""
