"""Reads which process groups of a rank found no room in its page (``<page>.groups``).

The agent adds a line of JSON for each. How far such a group has come is not known but by
PyTorch's Flight Recorder, whose calls are placed by this.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hangwatch.evidence.flight.backends import is_hooked
from hangwatch.model.calls import GroupKey
from hangwatch.model.flight import FlightDump
from hangwatch.model.page import PageGroup

SUFFIX = ".groups"
MAX_BYTES = 4 << 20
FIRST_SLOT = 1 << 20
"""They get slots that no page has, in the order in which they were made."""


def groups_left_out(page: Path) -> tuple[PageGroup, ...]:
    """The groups beyond those of the page; none where nothing can be read."""
    try:
        fd = os.open(
            page.with_name(page.name + SUFFIX),
            os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
        )
    except OSError:
        return ()
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != page.stat().st_uid:
            return ()
        lines = file.read(MAX_BYTES).splitlines()
    found: dict[tuple[str, GroupKey], PageGroup] = {}
    for line in lines:
        group = _group(line, FIRST_SLOT + len(found))
        if group is not None:
            found.setdefault((group.name, group.key), group)  # it may stand there twice
    return tuple(found.values())


def counted(groups: Iterable[PageGroup], flight: FlightDump) -> tuple[PageGroup, ...]:
    """Such groups with what the Flight Recorder has seen of them.

    The others are as they are, but where a hook of torch's recorded calls beyond those that the
    page has counted: it may not know how their backend counts.
    """
    last: dict[str, tuple[int, int]] = {}
    """Name to the newest group that has it and its last collective."""
    hooked = set()
    for entry in flight.entries:
        if not entry.p2p:
            here = entry.pg_id, entry.seq
            last[entry.group_name] = max(here, last.get(entry.group_name, here))
            if is_hooked(entry):
                hooked.add(entry.group_name)
    return tuple(
        replace(group, enqueued=max(group.enqueued, last[group.name][1]))
        if group.name in last
        and (group.slot >= FIRST_SLOT or (group.alive and group.name in hooked))
        else group
        for group in groups
    )


def _group(line: bytes, slot: int) -> PageGroup | None:
    try:
        told: dict[str, Any] = json.loads(line)
        ranks = tuple(int(rank) for rank in told["ranks"])
        key = GroupKey(ranks, str(told["desc"]), int(told["index"]))
        return PageGroup(slot, str(told["name"]), key, str(told["backend"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # cut off, where its memory was full
