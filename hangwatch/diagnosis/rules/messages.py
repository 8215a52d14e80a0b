"""Judges ranks that wait for messages of each other that never come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hangwatch.diagnosis.facts.history import step
from hangwatch.diagnosis.facts.wait_points import Channel, Wait, WaitPoint
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.text import messages
from hangwatch.diagnosis.text.phrases import Ranks, group_text
from hangwatch.diagnosis.text.wording import Scene, Text
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, OpState, What
from hangwatch.model.snapshot import OpRecord

ENOUGH_TAGS = 4
"""Messages of a line that show by how much its tag goes up each time."""


@dataclass(frozen=True, slots=True)
class Side:
    """One rank of a cycle, and a message of it that does not come."""

    wait: Wait
    point: Channel
    posted: OpRecord | None = None
    """The call that it made for the message, where that is not the one that it waits in."""

    @property
    def rank(self) -> int:
        """The rank that waits."""
        return self.wait.rank

    @property
    def record(self) -> OpRecord | None:
        """The call that it made for the message."""
        return self.posted or self.wait.record


def judge_messages(case: Case, sides: Mapping[WaitPoint, Sequence[Wait]]) -> Finding | None:
    """Two ranks of which one sends and the other receives, but not the same message.

    Or ranks that all send, or all receive, each waiting for the next. None for other cycles.
    """
    found = [
        Side(wait, point)
        for point, waits in sides.items()
        for wait in waits
        if isinstance(point, Channel)
    ]
    ranks = tuple(sorted(side.rank for side in found))
    peers = tuple(sorted(side.point.peer for side in found))
    if len(found) != sum(map(len, sides.values())) or len({*ranks}) < len(found) or ranks != peers:
        return None
    if len({side.point.sends for side in found}) == 1:
        pairs = [(side, other) for side in found if (other := _posted(case, side)) is not None]
        parted = (pair for pair in pairs if any(_leap(case, side) for side in pair))
        named = next(parted, None)
        if named is not None:
            return _of_two_names(case, *named)
        return _of_one_direction(case, found, posted=bool(pairs))
    return _of_two_names(case, *found) if len(found) == 2 else None  # noqa: PLR2004 (a pair)


def _posted(case: Case, side: Side) -> Side | None:
    """The call of its peer, still under way, for the message but with another tag."""
    gid, waiter, peer = side.point.gid, side.rank, side.point.peer
    wire = "recv" if side.point.sends else "send"
    wait = case.first_wait(peer)
    for own, record in case.job.ops.get(peer, ()):
        if (
            wait is not None
            and (own, record.p2p, record.peer) == (gid, True, waiter)
            and record.wire.startswith(wire)
            and record.tag != side.point.tag
            and record.state in (OpState.ISSUED, OpState.BLOCKED)
        ):
            point = Channel(gid, peer, waiter, not side.point.sends, record.tag, 0, -1)
            return Side(wait, point, record)
    return None


def _of_two_names(case: Case, one: Side, other: Side) -> Finding | None:
    """A send and a recv between two ranks, with different tags or in different groups."""
    differs = "tag" if one.point.tag != other.point.tag else "group"
    leaps = {side: leap for side in (one, other) if (leap := _leap(case, side))}
    culprit = next(iter(leaps)) if differs == "tag" and len(leaps) == 1 else None
    first, second = (one, other) if culprit is not other else (other, one)
    both = tuple(sorted((one.rank, other.rank)))
    scene = _scene(case, (culprit.rank,) if culprit else both, (second.rank,), first, second)
    names = [
        f"tag {side.point.tag}" if differs == "tag" else group_text(case.job, side.point.gid)
        for side in (first, second)
    ]
    leap = leaps[culprit] if culprit is not None else None
    text = messages.two_names(scene, first.rank, names, leap, sends=first.point.sends)
    return _finding(case, scene, (first, second), text, differs)


def _of_one_direction(case: Case, found: Sequence[Side], *, posted: bool) -> Finding | None:
    """Ranks that all send or all receive: no call would let the first go on.

    posted: some have made their part of other messages, with other tags.
    """
    ranks = tuple(sorted(side.rank for side in found))
    first, second = sorted(found, key=lambda side: side.rank)[:2]
    scene = _scene(case, ranks, (), first, second)
    text = messages.one_direction(scene, sends=first.point.sends, posted=posted)
    return _finding(case, scene, found, text)


def _scene(case: Case, culprits: Ranks, others: Ranks, first: Side, second: Side) -> Scene:
    where = group_text(case.job, first.point.gid)
    return Scene(culprits, others, where, _site(case, first), _site(case, second))


def _site(case: Case, side: Side) -> Site | None:
    known = with_source(side.posted.site, case.texts) if side.posted is not None else None
    return known or case.wait_site(side.wait)


def _finding(
    case: Case, scene: Scene, sides: Sequence[Side], text: Text, differs: str = ""
) -> Finding:
    points = [side.point for side in sides]
    waits = tuple(side.wait for side in sides)
    firm = all(wait.firm for wait in waits)
    ranks, culprits = {side.rank for side in sides}, {*scene.culprits}
    victims = tuple(sorted({*case.victims_of(culprits, points), *ranks} - culprits))
    finding = Finding(
        kind=Kind.MISSING_PEER,
        certainty=Certainty.LIKELY if culprits < ranks else Certainty.POSSIBLE,
        text=text,
        final=firm,
        hang=Certainty.PROVED if firm else Certainty.LIKELY,
        what=What.DIFFERENT_ARGUMENT if differs else What.UNMATCHED_P2P,
        settled=True,
        differs=differs,
        **case.about(points[0], scene, victims),
    )
    return replace(finding, waits=waits)


def _leap(case: Case, side: Side) -> tuple[int, int] | None:
    """(by how much the tags of its line went up before, by how much now) where that differs."""
    record = side.record
    if record is None:
        return None
    gid = case.job.gid(record.group)
    made = [one for own, one in case.job.ops.get(side.rank, ()) if own == gid]
    tags = [one.tag for one in made if step(one) == step(record) and one.peer == record.peer]
    *before, now = [later - earlier for earlier, later in pairwise(tags)] or [0]
    even = len(before) >= ENOUGH_TAGS and len({*before}) == 1
    return (before[0], now) if even and now != before[0] else None
