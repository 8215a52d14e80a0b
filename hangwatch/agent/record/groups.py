"""The process groups of this process, and the slot of the page that each has.

A group is known by its members, its description and its index among those with
the same two, in the order in which they were made. So groups are taken in when
they are made, in the order of torch's own table, and not when they are first
used: two ranks may use two such groups in different orders.

A signal handler, or a finalizer that the garbage collector runs, may make and destroy
groups while we are at it, and raise what strikes between two of our statements. So
no thread waits here: one that comes while another is at work leaves a note that there is
more to do. And each step can be done again: a slot and an index are used up only together
with what they were given to.
"""

from __future__ import annotations

import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from hangwatch.agent.guard import Ticket, Turn
from hangwatch.agent.torch_api import backends
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hangwatch.agent.record.recorder import Recorder

NO_SLOT = -1
ASK_AGAIN = -2
"""Instead of a slot: not known now, and perhaps at the next call."""
FRESH_SLOTS = 64
"""Slots that are used before one is used again. Each one beyond costs memory."""
_AT_ONCE = 8
"""Rounds over what came meanwhile before it is left to the next caller."""
_FIRST_LOOK = 4
_NO_DESCRIPTION = "undefined"
"""torch's description of a group that was given none (ProcessGroup.hpp)."""


class Known(NamedTuple):
    """A group that has been taken in, without keeping it alive."""

    group: weakref.ref[Any]
    slot: int
    """NO_SLOT where the page has no room for it."""
    ranks: tuple[int, ...]
    python: bool
    """True if its class is written in Python, so that its own methods are wrapped."""
    counts: dict[bool, int]
    """Calls of such a group so far, those that are point-to-point under True."""
    identity: int
    """id() of the group."""


class _Coming(NamedTuple):
    """A group that is being taken in, and the slot and index that it will use up."""

    known: Known
    name: str
    desc: str
    key_index: int
    """Among those with the same members and description."""
    backend: str
    left_out: int
    """Groups without a slot, this one included."""


class Groups:
    """The process groups of torch.distributed.distributed_c10d, which is ``c10d``.

    adopt is called with each group whose class is written in Python, use_backends with each
    other one and the names of its backends, leave_out with what one is known by that finds no
    slot.
    """

    def __init__(
        self,
        c10d: Any,
        recorder: Recorder,
        adopt: Callable[[Any], None],
        leave_out: Callable[[Mapping[str, Any]], object] = lambda _: None,
        use_backends: Callable[[Any, Iterable[str]], object] = lambda *_: None,
    ) -> None:
        self._c10d = c10d
        self._world = c10d._world
        self._recorder = recorder
        self._adopt = adopt
        self._leave_out = leave_out
        self._use_backends = use_backends
        self._known: dict[int, Known] = {}
        self._seen: dict[tuple[tuple[int, ...], str], int] = {}
        self._unused = 0
        """The first slot that was never used."""
        self._retired: dict[int, None] = {}
        """Slots to be used again, the one that was retired first in front."""
        self._coming: _Coming | None = None
        self._left_out = 0
        """Groups that found no slot."""
        self._turn = Turn()
        self._more = False
        """There is something to do."""
        self._unsure = False
        """It may be anything: a call was interrupted, or has left it to another one."""

    def __len__(self) -> int:
        """Return the number of groups that are alive."""
        return len(self._known)

    def known(self) -> list[Known]:
        """Return the groups that are alive, in the order in which they were made."""
        return list(self._known.values())

    def has(self, known: Known) -> bool:
        """Return True if ``known`` still has its slot."""
        return self._known.get(known.identity) is known

    def find(self, group: Any) -> Known | None:
        """Return ``group`` as it was taken in; takes in what is new."""
        return self._find(group)[0]

    def native_slot(self, group: Any) -> int:
        """Return the slot for the wrappers around torch's own class (``wrap_methods``).

        NO_SLOT for a group that is recorded by wrappers around its own class: it
        may call torch's methods in turn, and must not be counted twice.
        """
        known, sure = self._find(group)
        if known is None:
            return NO_SLOT if sure else ASK_AGAIN
        return NO_SLOT if known.python else known.slot

    def update(self, gone: Any = None) -> bool:
        """Take in the groups that torch has now; retire those that it has no more.

        gone: a group that was destroyed just now. Returns False where another call is at
        it, in another thread or below us on the stack: that one does it.
        """
        world = self._c10d._world
        if world is not self._world:
            return True  # torch's own tests give each thread a world; a page has one rank
        self._more = True
        for attempt in range(_AT_ONCE):
            if not self._more:
                return True
            ticket = Ticket()
            try:
                if not self._turn.take(ticket):
                    self._unsure = True
                    return False
                self._more = False
                whole, self._unsure = self._unsure or attempt > 0, True
                self._follow(world, gone, whole=whole)
                self._unsure = self._more
            finally:
                ticket.over = True
        return not self._more

    def catch_up(self) -> None:
        """Do what was left to be done, if anything was."""
        if self._more or self._unsure:
            self.update()

    def _find(self, group: Any) -> tuple[Known | None, bool]:
        """Return ``group`` as it was taken in, and True if that answer will stay true."""
        sure = True
        known = self._current(group)
        if known is None:
            sure = self.update()
            known = self._current(group)
        return known, sure

    def _current(self, group: Any) -> Known | None:
        known = self._known.get(id(group))
        return known if known is not None and known.group() is group else None

    def _follow(self, world: Any, gone: Any, *, whole: bool) -> None:
        """Do what torch's table of groups asks for: one that grew costs what is new in it.

        whole: look at all of it.
        """
        if self._coming is not None:
            self._settle(self._coming)
        table = world.pg_map
        if gone is not None and gone not in table:
            known = self._current(gone)
            if known is not None:
                self._retire(known)
        self._take_in(self._newest(table), world)
        if whole or len(self._known) != len(table):
            groups = list(table)
            alive = {id(group): group for group in groups}
            for known in self.known():
                if known.group() is None or known.group() is not alive.get(known.identity):
                    self._retire(known)
            self._take_in(groups, world)

    def _newest(self, table: Any) -> list[Any]:
        """Return the groups that came into the table after the last one that is known."""
        count = _FIRST_LOOK
        while True:
            try:
                newest = list(islice(reversed(table), count))
            except RuntimeError as error:  # changed amid this, by a handler or a finalizer
                if is_foreign(error):
                    raise
                self._more = True
                return []
            for position, group in enumerate(newest):
                if self._current(group) is not None:
                    return newest[:position][::-1]
            if len(newest) < count:
                return newest[::-1]
            count *= _FIRST_LOOK

    def _retire(self, known: Known) -> None:
        if known.slot != NO_SLOT:
            self._recorder.retire_group(known.slot)
            self._retired[known.slot] = None
        self._known.pop(known.identity, None)

    def _take_in(self, groups: Iterable[Any], world: Any) -> None:
        for group in groups:
            if self._current(group) is not None:
                continue
            ranks = _members(group, world)
            if ranks is None:
                continue
            stale = self._known.get(id(group))
            if stale is not None:
                self._retire(stale)
            python = type(group) is not self._c10d.ProcessGroup
            if python:
                self._adopt(group)
            entry = world.pg_map.get(group)
            if entry is None:
                continue  # destroyed meanwhile
            desc = _description(group)
            name = str(world.pg_names.get(group, ""))
            names = {} if python else backends(group)
            backend = ",".join(f"{device}:{name}" for device, name in names.items())
            backend = backend or str(world.pg_backend_config.get(group) or entry[0])
            self._use_backends(group, names.values())
            counts = {False: 0, True: 0}
            known = Known(weakref.ref(group), self._slot(), ranks, python, counts, id(group))
            index = self._seen.get((ranks, desc), 0)
            left_out = self._left_out + (known.slot == NO_SLOT)
            self._coming = _Coming(known, name, desc, index, backend, left_out)
            self._settle(self._coming)

    def _settle(self, coming: _Coming) -> None:
        """Take a group in, or go on with it where an exception had struck before the end."""
        known = coming.known
        if not self.has(known):
            self._seen[known.ranks, coming.desc] = coming.key_index + 1
            if known.slot == NO_SLOT:
                self._left_out = coming.left_out
                self._recorder.set_groups_left_out(self._left_out)
                self._leave_out(
                    {
                        "name": coming.name,
                        "desc": coming.desc,
                        "ranks": known.ranks,
                        "index": coming.key_index,
                        "backend": coming.backend,
                    }
                )
            elif self._define(coming):
                self._unused = max(self._unused, known.slot + 1)
                self._retired.pop(known.slot, None)
            else:
                known = known._replace(slot=NO_SLOT)
                left_out = self._left_out + 1
                self._coming = coming._replace(known=known, left_out=left_out)
                self._settle(self._coming)
                return
            self._known[known.identity] = known
        self._coming = None

    def _define(self, coming: _Coming) -> bool:
        known = coming.known
        return self._recorder.define_group(
            known.slot, coming.name, coming.desc, known.ranks, coming.key_index, coming.backend
        )

    def _slot(self) -> int:
        """Return a slot never used, while those are cheap, else the one that was retired first."""
        if self._unused < min(FRESH_SLOTS, self._recorder.MAX_GROUPS):
            return self._unused
        retired = next(iter(list(self._retired)), NO_SLOT)
        if retired != NO_SLOT:
            return retired
        return self._unused if self._unused < self._recorder.MAX_GROUPS else NO_SLOT


def _members(group: Any, world: Any) -> tuple[int, ...] | None:
    """Return global ranks in the order of the group; None while torch is still making it."""
    positions = world.pg_group_ranks.get(group)
    if positions is not None:
        return tuple(sorted(positions, key=positions.__getitem__))
    return tuple(range(group.size())) if group is world.default_pg else None


def _description(group: Any) -> str:
    try:
        desc = str(group.group_desc)
    except (AttributeError, RuntimeError, TypeError) as error:
        if is_foreign(error):
            raise
        return ""  # a class of the user's that has none, or never called ours
    return "" if desc == _NO_DESCRIPTION else desc
