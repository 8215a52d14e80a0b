"""The file of a page that is written in Python: made, mapped, and rewritten as a whole."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

from hangwatch.agent.guard import Ticket, Turn
from hangwatch.model import page_format

if TYPE_CHECKING:
    from collections.abc import Mapping

NEW_GROUPS = 32
MARKS = 16
RING_EVENTS = 256
MEMBERS_SHOWN = 1024
"""Members of a group that a page shows which is too small for all; fewer if need be."""
Fields = dict[str, Any]


class PageFile:
    """A page of this process. Nothing is written by a fork's child."""

    def __init__(self, path: str) -> None:
        """Make the file. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            # Room is set aside first: a full file system answers a write to a mapping by SIGBUS.
            os.posix_fallocate(descriptor, 0, page_format.PAGE_BYTES)
            self._memory = _mapped(descriptor)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        self.pid = os.getpid()
        self._generation = 0
        self._writing = Turn()

    def write(
        self, values: Fields, groups: Mapping[int, Fields], events: Mapping[int, Fields]
    ) -> None:
        """Write the page, unless another thread does: the next beat writes it again."""
        if self.pid != os.getpid():
            return
        ticket = Ticket()
        try:
            if self._writing.take(ticket):
                copied = [dict(group) for group in list(groups.values())]
                newest = [dict(event) for event in list(events.values())]
                newest.sort(key=_index)
                text = _fitting(values, copied, newest[-RING_EVENTS:])
                self._generation += 1
                page_format.write(self._memory, self._generation, text)
        finally:
            ticket.over = True


def _mapped(descriptor: int) -> mmap.mmap:
    """Map a page's file until the process ends.

    The mapping has a descriptor of its own and closes that number when it goes: the program
    may have closed it meanwhile (as daemons close all), and the number be one of its files.
    """
    import ctypes  # torch has imported it already

    memory = mmap.mmap(descriptor, page_format.PAGE_BYTES)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return memory


def _fitting(values: Fields, groups: list[Fields], events: list[Fields]) -> bytes:
    """Return the page's text with as many of the newest events as there is room for.

    Where not even the groups fit, only their first members are kept.
    """
    shown = MEMBERS_SHOWN
    while True:
        try:
            return page_format.encode({**values, "groups": groups, "events": events})
        except ValueError:
            if events:
                events = events[len(events) // 2 + 1 :]
                continue
            if not shown:
                raise
            groups, shown = [_shortened(group, shown) for group in groups], shown // 4


def _shortened(group: Fields, shown: int) -> Fields:
    """Return the group with at most ``shown`` of its members, and their number."""
    ranks = group["key"]["ranks"]
    if len(ranks) <= shown:
        return group
    members = group.get("members", len(ranks))
    key = {**group["key"], "ranks": ranks[:shown]}
    return {**group, "key": key, "members": members, "truncated": True}


def _index(event: Fields) -> int:
    return int(event["index"])
