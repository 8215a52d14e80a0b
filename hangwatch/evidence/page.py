"""Reads a rank page of either recorder into a RankPage.

The schema of the plain values, from ``_native.read_page`` and in the JSON of
the Python recorder alike: the keys of a dict are the fields of the dataclass
in hangwatch.model, nested as those are; enums are their string values, tuples
are lists. Fields that have a default may be missing, unknown keys are ignored.

Of the native recorder, an event's ``issued_ns`` is exact, ``blocked_ns`` and
``done_ns`` are to the tick of the kernel (1 to 10 ms).
"""

from __future__ import annotations

from typing import Any

from hangwatch.errors import PageError
from hangwatch.model import codec, native, page_format
from hangwatch.model.page import RankPage
from hangwatch.safety import redaction

MAX_WORLD = 1 << 20
"""Most ranks in one job. A page that claims more is refused: memory would grow with it."""


def parse_page(data: Any, *, events: bool = True) -> RankPage:
    """Decode an object with the buffer protocol (bytes, an mmap) that holds a page.

    Hand in an mmap of a page that is being written: of a copy, an event may be
    torn. With events=False the ring is left out, which is several times
    faster. Raises PageError for whatever is no page of a version known here.
    """
    try:
        with memoryview(data) as view, view.cast("B") as octets:
            magic = bytes(octets[: len(page_format.MAGIC)])
        values = (
            page_format.decode(data)
            if magic == page_format.MAGIC
            else _decode_native(data, events=events)
        )
        if not events:
            values["events"] = []
        page: RankPage = codec.decode(RankPage, _legible(values), lenient=True)
        return _believed(page)
    except (TypeError, ValueError, BufferError, codec.CodecError) as error:
        raise PageError(f"rank page cannot be read: {error}") from error


def _believed(page: RankPage) -> RankPage:
    """Return the page. Raises ValueError where it claims what no job has."""
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
    return page


def _decode_native(data: Any, *, events: bool) -> dict[str, Any]:
    try:
        values: dict[str, Any] = native.load().read_page(data, events)
    except ImportError as error:
        raise PageError(
            "rank page of the native recorder, which this installation of hangwatch lacks "
            f"({error}): install hangwatch where a C++ compiler is found"
        ) from error
    return values


def _legible(values: dict[str, Any]) -> dict[str, Any]:
    """Mark groups of which the page could not hold all members; and leave secrets out.

    The mark stands in the description: it is the same on every rank, so such
    groups still find each other, and people see it.
    """
    exception = values.get("exception")
    if isinstance(exception, dict) and isinstance(exception.get("message"), str):
        message, thrown, sent, after = page_format.unpacked(exception["message"])
        exception["message"] = redaction.text(message)
        exception["thrown"] = redaction.text(thrown)
        exception["sent"] = sent
        exception["after"] = [redaction.text(text) for text in after]
    groups = values.get("groups")
    if not isinstance(groups, list):
        return values
    for group in groups:
        if not isinstance(group, dict) or group.get("truncated") is not True:
            continue
        key = group.get("key")
        if isinstance(key, dict) and isinstance(key.get("ranks"), list):
            known = f"(first {len(key['ranks'])} of {group.get('members')} members)"
            key["desc"] = f"{key.get('desc', '')} {known}".lstrip()
    return values
