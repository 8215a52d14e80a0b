"""Judges ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hangwatch.diagnosis.facts.channels import is_guessed, senders
from hangwatch.diagnosis.facts.history import has_history, is_usual_wait, step
from hangwatch.diagnosis.facts.job import at_most_half
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Setup, Slot, Wait, WaitPoint
from hangwatch.diagnosis.graph import Root
from hangwatch.diagnosis.rules.blocking import finished
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.missing import (
    frozen_setup,
    judge_setups_in_cycle,
    missing_peer,
)
from hangwatch.diagnosis.rules.threads import unless_released
from hangwatch.diagnosis.text import disagreement, wording
from hangwatch.diagnosis.text.phrases import Ranks, group_text
from hangwatch.diagnosis.text.wording import Scene, Text
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, OpState, Reason, What
from hangwatch.model.snapshot import OpRecord

ENOUGH_TAGS = 4
"""Messages of a line that show by how much its tag goes up each time."""


def frozen_in(case: Case, root: Root) -> Ranks:
    """The ranks of a cycle of collectives and messages of which nothing runs.

    What they wait for may have come: the others wait until they are continued.
    """
    if any(isinstance(wait_point, Setup) for wait_point in root.wait_points):
        return ()
    return tuple(rank for rank in root.ranks if case.is_frozen(rank))


def judge_cycle(case: Case, root: Root) -> Finding:
    """Judge ranks that wait for each other."""
    connecting = _all_connect(case, root)
    if connecting is not None:
        return connecting
    finding = unless_released(case, _judge_cycle(case, root))
    if any(
        isinstance(point, Channel) and is_guessed(case.job, point) for point in root.wait_points
    ):
        return replace(finding, certainty=Certainty.POSSIBLE, final=False)
    return finding


def _judge_cycle(case: Case, root: Root) -> Finding:
    setups = [wait_point for wait_point in root.wait_points if isinstance(wait_point, Setup)]
    finding = frozen_setup(case, max(setups), root.ranks) if setups else None
    finding = finding or _left_group(case, root)
    if finding is not None:
        return finding
    if setups:
        return judge_setups_in_cycle(case, setups, root.ranks)
    inside = {*root.ranks}
    sides: dict[WaitPoint, list[Wait]] = {}
    outside: list[Wait] = []
    for wait_point in root.wait_points:
        there = case.waits_at(wait_point)
        sides[wait_point] = [
            wait
            for wait in there
            if wait.rank in inside or (not inside and _is_first(case, root, wait))
        ]
        outside.extend(wait for wait in there if inside and wait.rank not in inside)
    # Their calls before they waited might show which of them left the common sequence.
    waits = [wait for side in sides.values() for wait in side]
    silent = any(not has_history(case.job, wait) for wait in (*waits, *outside))
    left = _blame(case, waits, outside, [*_for_messages(case, root)])
    finding = _judge_messages(case, sides) if left is None else None
    if finding is not None:
        return finding
    halves = [s for s in root.wait_points if isinstance(s, Channel) and _is_cause(case, s, left)]
    if len({_peers_of(case, half) for half in halves}) == 1:
        oldest = max(halves, key=lambda half: (sides[half][0].age_s, half.sends, half.tag))
        return _half_message(case, oldest, inside, silent=silent and left is None)
    finding = _inversion(case, sides, left)
    if left is None and silent and finding.certainty is Certainty.PROVED:
        # One of two sides may have left the common sequence, and the other is named with it.
        outvoted = len(finding.culprits) < len({wait.rank for wait in waits})
        return replace(finding, certainty=Certainty.LIKELY if outvoted else Certainty.POSSIBLE)
    return finding


def _all_connect(case: Case, root: Root) -> Finding | None:
    """Ranks that wait for each other in calls of NCCL's which none of them has returned from.

    The calls that each posts next are not known: they may be the ones that the others need.
    """
    waits = tuple(
        wait
        for point in root.wait_points
        for wait in case.waits_at(point)
        if wait.rank in root.ranks
    )
    if not waits or not all(wait.connects for wait in waits):
        return None
    scene = Scene((), root.ranks, waits[0].op, None, case.victims_site(waits))
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        reason=Reason.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        text=wording.connecting(root.ranks, scene.where, scene.other_site),
        **case.about(waits[0].wait_point, scene, case.victims_of((), root.wait_points), waits),
    )


def _left_group(case: Case, root: Root) -> Finding | None:
    """Some ranks wait in a group that others have destroyed and no longer enter.

    The waits of the others do not matter: they only continued their program.
    """
    for wait_point in root.wait_points:
        if isinstance(wait_point, Slot):
            missing = case.graph.missing.get(wait_point, ())
            gone = sorted(rank for rank in missing if case.job.has_left(rank, wait_point.gid))
            if gone:
                return finished(case, wait_point, tuple(gone))
    return None


def _is_first(case: Case, root: Root, wait: Wait) -> bool:
    """Return True if this was the first of the root's wait points that the rank reached."""
    wait_points = (
        own.wait_point
        for own in case.graph.by_rank[wait.rank]
        if own.wait_point in root.wait_points
    )
    return next(wait_points, None) == wait.wait_point


def _inversion(case: Case, sides: dict[WaitPoint, list[Wait]], left: _Blame | None) -> Finding:
    """Ranks that wait for each other in different calls; left: the ones that left the program."""
    ordered = sorted(sides.items(), key=lambda side: len(side[1]))
    parts = [
        (
            tuple(sorted({wait.rank for wait in waits})),
            case.where(wait_point),
            case.victims_site(waits),
        )
        for wait_point, waits in ordered
        if waits
    ]
    waits = tuple(wait for _, side in ordered for wait in side)
    blocked = all(wait.is_blocked for wait in waits)
    certainty = Certainty.PROVED if blocked else Certainty.LIKELY
    kind = Kind.ORDER_INVERSION
    if left is None:
        culprits, about = _fewer([ranks for ranks, _, _ in parts]), ordered[0][0]
        site, other_site = parts[0][2], parts[1][2] if len(parts) > 1 else None
        text = wording.cycle(parts)
        if any(isinstance(point, Channel) and point.peer == ANYONE for point in sides):
            certainty = Certainty.POSSIBLE  # any message may be missing, or none
    else:
        culprits = left.culprits
        guilty = [wait for wait in waits if wait.rank in culprits]
        rest = [wait for wait in waits if wait.rank not in culprits]
        about = guilty[0].wait_point
        site, other_site = case.victims_site(guilty), case.victims_site(rest)
        if left.undecided:
            certainty = Certainty.POSSIBLE
        if isinstance(about, Channel) and not left.undecided:
            kind = Kind.MISSING_PEER
            mine, theirs = (case.op_at(some, None) or "a collective" for some in (guilty, rest))
            group = group_text(case.job, about.gid)
            scene = Scene(culprits, left.others, group, site, other_site)
            text = wording.unmatched(scene, mine, theirs, new=True)
        else:
            text = wording.cycle(parts, () if left.undecided else culprits)
    return Finding(
        kind=kind,
        certainty=certainty,
        culprits=culprits,
        victims=case.victims_of(culprits, sides),
        text=text,
        final=blocked,
        wait_point=about,
        collective=case.collective(about, case.waits_at(about)),
        site=site,
        victim_site=other_site,
        waits=waits,
        undecided=culprits if left is not None and left.undecided else (),
    )


def _fewer(sides: Sequence[Ranks]) -> Ranks:
    """The side with fewer ranks, if there are two; otherwise all that wait for each other."""
    if len(sides) == 2 and len(sides[0]) < len(sides[1]):  # noqa: PLR2004 (one or the other)
        return sides[0]
    return tuple(sorted({rank for ranks in sides for rank in ranks}))


# --- A message without its other half -----------------------------------------------------


def _is_cause(case: Case, wait_point: Channel, left: _Blame | None) -> bool:
    """Return True if a send or recv without its other half is the cause of the cycle."""
    peers = _peers_of(case, wait_point)
    if left is not None:
        known = bool(peers) and {*peers} <= {*left.culprits}
        return known and wait_point.waiter in left.others
    missing = case.graph.missing
    return bool(peers) and all(
        any(
            wait_point.waiter in missing.get(wait.wait_point, ())
            for wait in case.graph.by_rank.get(peer, ())
        )
        for peer in peers
    )


def _peers_of(case: Case, wait_point: Channel) -> Ranks:
    """The ranks that have to match a send or recv; from any source: that sent too little."""
    if wait_point.peer != ANYONE:
        return (wait_point.peer,)
    missing, several = case.graph.missing[wait_point], senders(case.job, wait_point)
    return missing if len(several) == 1 or at_most_half(missing, several) else ()


def _half_message(case: Case, wait_point: Channel, inside: set[int], *, silent: bool) -> Finding:
    """A send or recv whose peer waits in something else, and that for the waiter.

    silent: the waiter may as well have left the common sequence.
    """
    peers = _peers_of(case, wait_point)
    finding = missing_peer(case, wait_point, peers, case.waiting_text(peers), Reason.USER_CODE)
    blocked = all(wait.is_blocked for rank in inside for wait in case.graph.by_rank.get(rank, ()))
    sure = blocked and wait_point.peer != ANYONE and not silent
    return replace(finding, certainty=Certainty.PROVED if sure else Certainty.LIKELY, final=blocked)


def _for_messages(case: Case, root: Root) -> Iterator[Wait]:
    """The waits of ranks outside for messages of ranks of a cycle."""
    for rank in root.ranks:
        for point in case.graph.before().get(rank, ()):
            if isinstance(point, Channel) and point not in root.wait_points:
                yield from case.waits_at(point)


# --- The ranks of a cycle that left the common sequence of calls --------------------------


@dataclass(frozen=True, slots=True)
class _Blame:
    """The ranks of a cycle that left the common sequence of calls, and the others."""

    culprits: Ranks
    others: Ranks
    undecided: bool = False
    """One of ``culprits`` left the common sequence of calls, and it is not known which."""


def _blame(
    case: Case, waits: Sequence[Wait], outside: Sequence[Wait], for_messages: Sequence[Wait]
) -> _Blame | None:
    """Judge the ranks of a cycle, each with the one wait that it is in.

    The cycle itself does not show which rank is wrong: it is one that does something new at this
    point. outside: waits of other ranks at the same wait points, each on the side that it waits
    with. for_messages: waits of other ranks for messages of the cycle.
    """
    inside = {wait.rank for wait in waits}
    there = [*waits, *outside]
    everyone = tuple(sorted({wait.rank for wait in there}))
    departures = case.departures
    alone = (departures.ranks or departures.tied) & inside
    if at_most_half(alone, everyone):
        return _Blame(*_sides(alone, everyone), undecided=not departures.ranks)
    if len(everyone) == 2 and _is_one_call(waits):  # noqa: PLR2004 (a pair)
        return None  # both send first: either may be at fault
    culprits, others = _sides(_strange(case, there, everyone, for_messages), everyone)
    culprits = tuple(rank for rank in culprits if rank in inside)
    return _Blame(culprits, others) if culprits else None


def _strange(
    case: Case, waits: Sequence[Wait], everyone: Ranks, for_messages: Sequence[Wait]
) -> set[int]:
    """The few ranks whose call never followed their earlier calls, while it did on all others."""
    usual = {wait.rank: is_usual_wait(case.job, wait) for wait in waits}
    strange = {rank for rank, is_so in usual.items() if is_so is False}
    rest = {rank for rank, is_so in usual.items() if is_so}
    if strange | rest != {*everyone} or not at_most_half(strange, everyone):
        return set()
    # A rank that waits for the rest in a new call shows that the program continued.
    along = any(
        is_usual_wait(case.job, wait) is False
        and {*case.graph.missing.get(wait.wait_point, ())} <= rest
        for wait in for_messages
    )
    return rest if along else strange


def _is_one_call(waits: Sequence[Wait]) -> bool:
    """Return True if all send from one line of the program."""
    calls = {step(wait.record) for wait in waits if wait.record is not None and wait.record.p2p}
    return len(calls) == 1 and all(w.record and "send" in w.record.wire for w in waits)


def _sides(ranks: Collection[int], everyone: Ranks) -> tuple[Ranks, Ranks]:
    return tuple(sorted(ranks)), tuple(rank for rank in everyone if rank not in ranks)


# --- Messages that do not match ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Side:
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


def _judge_messages(case: Case, sides: Mapping[WaitPoint, Sequence[Wait]]) -> Finding | None:
    """Two ranks of which one sends and the other receives, but not the same message.

    Or ranks that all send, or all receive, each waiting for the next. None for other cycles.
    """
    found = [
        _Side(wait, point)
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
        leaps = (pair for pair in pairs if any(_leap(case, side) for side in pair))
        if (pair := next(leaps, None)) is not None:
            return _of_two_names(case, *pair)
        return _of_one_direction(case, found, posted=bool(pairs))
    return _of_two_names(case, *found) if len(found) == 2 else None  # noqa: PLR2004 (a pair)


def _posted(case: Case, side: _Side) -> _Side | None:
    """The unfinished call of its peer for the message, but with another tag."""
    gid, waiter, peer = side.point.gid, side.rank, side.point.peer
    wire = "recv" if side.point.sends else "send"
    for own, record in case.job.ops.get(peer, ()):
        if (
            (own, record.p2p, record.peer) == (gid, True, waiter)
            and record.wire.startswith(wire)
            and record.tag != side.point.tag
            and record.state in (OpState.ISSUED, OpState.BLOCKED)
        ):
            point = Channel(gid, peer, waiter, not side.point.sends, record.tag, 0, -1)
            return _Side(case.graph.by_rank[peer][0], point, record)
    return None


def _of_two_names(case: Case, one: _Side, other: _Side) -> Finding:
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


def _of_one_direction(case: Case, found: Sequence[_Side], *, posted: bool) -> Finding:
    """Ranks that all send or all receive: no call would let the first one continue.

    posted: some have posted their part of other messages, with other tags.
    """
    ranks = tuple(sorted(side.rank for side in found))
    first, second = sorted(found, key=lambda side: side.rank)[:2]
    scene = _scene(case, ranks, (), first, second)
    text = disagreement.one_direction(scene, sends=first.point.sends, posted=posted)
    return _finding(case, scene, found, text)


def _scene(case: Case, culprits: Ranks, others: Ranks, first: _Side, second: _Side) -> Scene:
    where = group_text(case.job, first.point.gid)
    return Scene(culprits, others, where, _site(case, first), _site(case, second))


def _site(case: Case, side: _Side) -> Site | None:
    known = with_source(side.posted.site, case.texts) if side.posted is not None else None
    return known or case.wait_site(side.wait)


def _finding(
    case: Case, scene: Scene, sides: Sequence[_Side], text: Text, differs: str = ""
) -> Finding:
    points = [side.point for side in sides]
    waits = tuple(side.wait for side in sides)
    blocked = all(wait.is_blocked for wait in waits)
    ranks, culprits = {side.rank for side in sides}, {*scene.culprits}
    victims = tuple(sorted({*case.victims_of(culprits, points), *ranks} - culprits))
    finding = Finding(
        kind=Kind.MISSING_PEER,
        certainty=Certainty.LIKELY if culprits < ranks else Certainty.POSSIBLE,
        text=text,
        final=blocked,
        hang=Certainty.PROVED if blocked else Certainty.LIKELY,
        what=What.DIFFERENT_ARGUMENT if differs else What.UNMATCHED_P2P,
        settled=True,
        differs=differs,
        **case.about(points[0], scene, victims),
    )
    return replace(finding, waits=waits)


def _leap(case: Case, side: _Side) -> tuple[int, int] | None:
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
