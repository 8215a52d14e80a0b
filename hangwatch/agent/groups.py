"""Which process group of this process has which slot of the page.

A group is known by its members, its description and its place among those with
the same two, in the order in which they were made. So groups are taken in when
they are made, in the order of torch's own table, and not when they are first
used: two ranks may use two such groups in different orders.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.recorder import Recorder

NO_SLOT = -1
_NO_DESCRIPTION = "undefined"
"""What torch calls a group that was given none (ProcessGroup.hpp)."""


class Known(NamedTuple):
    """A group that has been taken in, without keeping it alive."""

    group: weakref.ref[Any]
    slot: int
    """NO_SLOT where the page has no room for it."""
    ranks: tuple[int, ...]
    python: bool
    """Whether its class is written in Python, so that its own methods are wrapped."""
    counts: Counter[bool]
    """Calls of such a group so far, those that are point-to-point under True."""


class Groups:
    """The process groups of torch.distributed.distributed_c10d, which is ``c10d``.

    adopt is called with each group whose class is written in Python.
    """

    def __init__(self, c10d: Any, recorder: Recorder, adopt: Callable[[Any], None]) -> None:
        self._c10d = c10d
        self._world = c10d._world
        self._recorder = recorder
        self._adopt = adopt
        self._known: dict[int, Known] = {}
        self._seen: Counter[tuple[tuple[int, ...], str]] = Counter()
        self._unused = iter(range(recorder.MAX_GROUPS))
        self._retired: deque[int] = deque()
        # Among the threads of the user that make groups; held for microseconds.
        self._lock = threading.Lock()

    def known(self) -> list[Known]:
        """The groups that are alive, in the order in which they were made."""
        return list(self._known.values())

    def find(self, group: Any) -> Known | None:
        """The group as it was taken in; takes in what is new."""
        known = self._known.get(id(group))
        if known is None or known.group() is not group:
            self.update()
            known = self._known.get(id(group))
        return known

    def native_slot(self, group: Any) -> int:
        """The slot for the wrappers around torch's own class (``wrap_methods``).

        NO_SLOT for a group that is recorded by wrappers around its own class: it
        may call torch's methods in turn, and must not be counted twice.
        """
        known = self.find(group)
        return known.slot if known is not None and not known.python else NO_SLOT

    def update(self) -> None:
        """Take in the groups that torch has now; retire those that it has no more."""
        world = self._c10d._world
        if world is not self._world:
            return  # torch's own tests give each thread a world; a page has one rank
        with self._lock:
            alive = {id(group): group for group in list(world.pg_map)}
            for identity, known in list(self._known.items()):
                if known.group() is None or known.group() is not alive.get(identity):
                    self._retire(identity, known)
            for identity, group in alive.items():
                if identity not in self._known:
                    self._take_in(identity, group, world)

    def _retire(self, identity: int, known: Known) -> None:
        del self._known[identity]
        if known.slot != NO_SLOT:
            self._recorder.retire_group(known.slot)
            self._retired.append(known.slot)

    def _take_in(self, identity: int, group: Any, world: Any) -> None:
        ranks = _members(group, world)
        if ranks is None:
            return
        python = type(group) is not self._c10d.ProcessGroup
        if python:
            self._adopt(group)
        desc = _description(group)
        index = self._seen[ranks, desc]
        self._seen[ranks, desc] += 1
        slot = self._free_slot()
        if slot != NO_SLOT:
            name = str(world.pg_names.get(group, ""))
            backend = str(world.pg_backend_config.get(group) or world.pg_map[group][0])
            self._recorder.define_group(slot, name, desc, ranks, index, backend)
        self._known[identity] = Known(weakref.ref(group), slot, ranks, python, Counter())

    def _free_slot(self) -> int:
        """One never used, else the one that was retired first."""
        slot = next(self._unused, NO_SLOT)
        return self._retired.popleft() if slot == NO_SLOT and self._retired else slot


def _members(group: Any, world: Any) -> tuple[int, ...] | None:
    """Global ranks in the order of the group; None while torch is still making it."""
    positions = world.pg_group_ranks.get(group)
    if positions is not None:
        return tuple(sorted(positions, key=positions.__getitem__))
    return tuple(range(group.size())) if group is world.default_pg else None


def _description(group: Any) -> str:
    try:
        desc = str(group.group_desc)
    except (AttributeError, RuntimeError, TypeError):
        return ""  # a class of the user's that has none, or never called ours
    return "" if desc == _NO_DESCRIPTION else desc
