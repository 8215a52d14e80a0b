"""Judges ranks that wait for messages of each other, none of which comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hangwatch.diagnosis.facts.channels import senders
from hangwatch.diagnosis.facts.history import step
from hangwatch.diagnosis.facts.job import is_minority
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Wait, WaitPoint
from hangwatch.diagnosis.graph.wait_for import Root
from hangwatch.diagnosis.rules.absentees import missing_peer
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.divergence import Divergence
from hangwatch.diagnosis.text import disagreement
from hangwatch.diagnosis.text.phrases import Ranks, at_line, group_text
from hangwatch.diagnosis.text.wording import Scene, Text
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, OpState, Reason, What
from hangwatch.model.snapshot import OpRecord
from hangwatch.text import verb

ENOUGH_TAGS = 4
"""Messages of a line that tell by how much its tag goes up each time."""


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
    """Two ranks of which one sends and the other receives, and yet not one message.

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
    """A call of its peer's for a message of theirs the other way round, but with another tag.

    None where there is none that is still under way.
    """
    gid, waiter, peer = side.point.gid, side.rank, side.point.peer
    wire = "recv" if side.point.sends else "send"
    wait = wait_of(case, peer)
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
    text = disagreement.two_names(scene, first.rank, names, leap, sends=first.point.sends)
    return _finding(case, scene, (first, second), text, differs)


def _of_one_direction(case: Case, found: Sequence[Side], *, posted: bool) -> Finding | None:
    """Ranks that all send or all receive: nobody does what would let the first go on.

    posted: some have made their part of other messages, with other tags.
    """
    ranks = tuple(sorted(side.rank for side in found))
    first, second = sorted(found, key=lambda side: side.rank)[:2]
    scene = _scene(case, ranks, (), first, second)
    text = disagreement.one_direction(scene, sends=first.point.sends, posted=posted)
    return _finding(case, scene, found, text)


def _scene(case: Case, culprits: Ranks, others: Ranks, first: Side, second: Side) -> Scene:
    where = group_text(case.job, first.point.gid)
    return Scene(culprits, others, where, _site(case, first), _site(case, second))


def _site(case: Case, side: Side) -> Site | None:
    known = with_source(side.posted.site, case.texts) if side.posted is not None else None
    return known or case.wait_site(side.wait)


def _finding(
    case: Case,
    scene: Scene,
    sides: Sequence[Side],
    text: Text,
    differs: str = "",
) -> Finding:
    points = [side.point for side in sides]
    waits = tuple(side.wait for side in sides)
    firm = all(wait.firm for wait in waits)
    ranks = {side.rank for side in sides}
    alone = len(scene.culprits) < len(ranks)
    return Finding(
        kind=Kind.MISSING_PEER,
        reason=Reason.USER_CODE,
        certainty=Certainty.LIKELY if alone else Certainty.POSSIBLE,
        culprits=scene.culprits,
        victims=tuple(
            sorted({*case.victims_of(scene.culprits, points), *ranks} - {*scene.culprits})
        ),
        text=text,
        final=firm,
        wait_point=points[0],
        collective=case.collective(points[0], case.waits_at(points[0])),
        site=scene.site,
        victim_site=scene.other_site,
        waits=waits,
        hang=Certainty.PROVED if firm else Certainty.LIKELY,
        what=What.DIFFERENT_ARGUMENT if differs else What.UNMATCHED_P2P,
        settled=True,
        differs=differs,
    )


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


# --- Messages in a cycle of other waits --------------------------------------------------


def tells(case: Case, wait_point: Channel, left: Divergence | None) -> bool:
    """Whether a send or recv without its other half is what the cycle is about."""
    peers = peers_of(case, wait_point)
    if left is not None:
        known = bool(peers) and set(peers) <= set(left.culprits)
        return known and wait_point.waiter in left.others
    return bool(peers) and all(
        any(wait_point.waiter in _missed(case, w) for w in case.graph.by_rank.get(peer, ()))
        for peer in peers
    )


def peers_of(case: Case, wait_point: Channel) -> Ranks:
    """Who has to match a send or recv; of a recv from any source those who sent too little."""
    if wait_point.peer != ANYONE:
        return (wait_point.peer,)
    missing, several = case.graph.missing[wait_point], senders(case.job, wait_point)
    return missing if len(several) == 1 or is_minority(missing, several) else ()


def _missed(case: Case, wait: Wait) -> Ranks:
    return case.graph.missing.get(wait.wait_point, ())


def channel_in_cycle(case: Case, wait_point: Channel, inside: set[int], *, silent: bool) -> Finding:
    """A send or recv whose peer waits in something else, and that for the waiter.

    silent: nothing tells but it may be the one that waits for it that has left the way.
    """
    peers = peers_of(case, wait_point)
    wait = wait_of(case, peers[0])
    they = verb(peers, "it waits", "they wait")
    waiting = (
        f"{they} in {case.where(wait.wait_point)}{at_line(case.wait_site(wait))}" if wait else ""
    )
    found = missing_peer(case, wait_point, peers, waiting, Reason.USER_CODE)
    firm = all(w.firm for r in inside for w in case.graph.by_rank.get(r, ()))
    sure = firm and wait_point.peer != ANYONE and not silent
    return replace(found, certainty=Certainty.PROVED if sure else Certainty.LIKELY, final=firm)


def for_messages(case: Case, root: Root) -> Iterator[Wait]:
    """The waits of ranks outside for messages of ranks of a cycle."""
    for rank in root.ranks:
        for point in case.graph.before().get(rank, ()):
            if isinstance(point, Channel) and point not in root.wait_points:
                yield from case.waits_at(point)


def wait_of(case: Case, rank: int) -> Wait | None:
    """The first wait of a rank."""
    return next(iter(case.graph.by_rank.get(rank, ())), None)
