"""Reads a rank's page, as either recorder writes it, and the files next to it.

The schema of the plain values, from ``_native.read_page`` and in the JSON of
the Python recorder alike: the keys of a dict are the fields of the dataclass
in hangwatch.model, nested as those are; enums are their string values, tuples
are lists. Fields that have a default may be missing, unknown keys are ignored.

Of the native recorder, an event's ``issued_ns`` is exact, ``blocked_ns`` and
``done_ns`` are to the tick of the kernel (1 to 10 ms).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hangwatch.errors import PageError
from hangwatch.model import codec, json_page, native
from hangwatch.model.calls import GroupKey
from hangwatch.model.page import MAX_WORLD, PageGroup, PageMoment, RankPage
from hangwatch.safety import redaction, untrusted
from hangwatch.safety.untrusted import Owner

_TRACE_OF_C10 = "\nException raised from "
"""The stack of C++ follows, in what() of c10::Error."""

SUFFIX = ".page"
"""Of a page's file name."""
MAX_BYTES = 16 << 20
"""No page is larger."""
MAX_GROUPS_BYTES = 4 << 20
FIRST_EXTRA_SLOT = 1 << 20
"""Groups for which the page had no room get slots from here on, which no page has."""


def parse_page(data: Any, *, events: bool = True) -> RankPage:
    """Decode an object with the buffer protocol (bytes, an mmap) that holds a page.

    Pass an mmap of a page that is being written: in a copy, an event may be torn.
    Without events the ring is left out, which is several times faster. Raises
    PageError for whatever is no page of a version known here.
    """
    try:
        with memoryview(data) as view, view.cast("B") as octets:
            magic = bytes(octets[: len(json_page.MAGIC)])
        if magic == json_page.MAGIC:
            values = json_page.decode(data)
        else:
            values = native.load().read_page(data, events)
        if not events:
            values["events"] = []
        _make_presentable(values)
        page: RankPage = codec.decode(RankPage, values, lenient=True)
        _check_claims(page)
    except ImportError as error:
        raise PageError(
            "rank page of the native recorder, which this installation of hangwatch lacks "
            f"({error}): install hangwatch where a C++ compiler is found"
        ) from error
    except (TypeError, ValueError, BufferError, codec.CodecError) as error:
        raise PageError(f"rank page cannot be read: {error}") from error
    return page


def parse_ring(data: Any) -> list[dict[str, Any]]:
    """Return the events of a page, oldest first, as plain values. Raises PageError.

    They are left as the native reader makes them: dataclasses take five times as long.
    """
    try:
        events: list[dict[str, Any]] = native.load().read_page(data)["events"]
    except (ImportError, ValueError):
        return [asdict(event) for event in parse_page(data).events]
    return events


def parse_moments(data: Any, after: int) -> list[PageMoment]:
    """Return the moments of a page with a number above ``after``, oldest first. Raises PageError.

    The Python recorder notes none.
    """
    try:
        return [PageMoment(*moment) for moment in native.load().read_moments(data, after)]
    except (ImportError, ValueError) as error:
        raise PageError(f"rank page cannot be read: {error}") from error


def extra_groups(page: Path) -> tuple[PageGroup, ...]:
    """Return the process groups for which a page had no room; none where they cannot be read.

    The agent adds a line of JSON for each to ``<page>.groups``. Only PyTorch's Flight
    Recorder shows how far they have come.
    """
    try:
        fd = untrusted.open_file(page.with_name(f"{page.name}.groups"), Owner.DIRECTORY)
        with os.fdopen(fd, "rb") as file:
            lines = file.read(MAX_GROUPS_BYTES).splitlines()
    except OSError:
        return ()
    groups: dict[tuple[str, GroupKey], PageGroup] = {}
    for line in lines:
        try:
            values: dict[str, Any] = json.loads(line)
            ranks = tuple(int(rank) for rank in values["ranks"])
            key = GroupKey(ranks, str(values["desc"]), int(values["index"]))
            name, backend = str(values["name"]), str(values["backend"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # cut off, where its memory was full
        slot = FIRST_EXTRA_SLOT + len(groups)
        groups.setdefault((name, key), PageGroup(slot, name, key, backend))
    return tuple(groups.values())


def _check_claims(page: RankPage) -> None:
    """Raise ValueError where a page claims more ranks than a job has."""
    identity = page.identity
    claimed = max(
        identity.world_size, identity.local_world_size, identity.rank + 1, identity.local_rank + 1
    )
    if claimed > MAX_WORLD:
        raise ValueError(f"it claims {claimed} ranks, and no job has more than {MAX_WORLD}")
    claims = *(group.key.ranks for group in page.groups), *(c.ranks for c in page.new_groups)
    for ranks in claims:
        if ranks and not 0 <= min(ranks) <= max(ranks) < MAX_WORLD:
            raise ValueError(f"it claims a group with ranks beyond {MAX_WORLD}")


def _make_presentable(values: dict[str, Any]) -> None:
    """Unpack and redact the exception, and mark groups whose members the page could not all hold.

    The mark is in the description: it is the same on every rank, so the groups
    still find each other, and people see it.
    """
    exception = values.get("exception")
    if isinstance(exception, dict) and isinstance(exception.get("message"), str):
        message, thrown, sent, after = json_page.unpacked(exception["message"])
        exception["message"] = redaction.text(message.partition(_TRACE_OF_C10)[0])
        exception["thrown"] = redaction.text(thrown)
        exception["sent"] = sent
        exception["after"] = [redaction.text(text) for text in after]
    groups = values.get("groups")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and group.get("truncated") is True:
            key = group.get("key")
            if isinstance(key, dict) and isinstance(key.get("ranks"), list):
                known = f"(first {len(key['ranks'])} of {group.get('members')} members)"
                key["desc"] = f"{key.get('desc', '')} {known}".lstrip()
