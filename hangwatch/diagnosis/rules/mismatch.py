"""Judges disputed slots, in which the members of a group entered different calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hangwatch.diagnosis.facts.endings import Cause, Ending, How, last_call
from hangwatch.diagnosis.facts.history import Step, expected, step
from hangwatch.diagnosis.facts.job import Job, is_majority
from hangwatch.diagnosis.facts.signatures import Differs, Split, misfits, split_of, usual_side
from hangwatch.diagnosis.facts.wait_points import UNNAMED, Slot, Wait
from hangwatch.diagnosis.rules.case import Case, Finding, collective_of, name_of
from hangwatch.diagnosis.rules.threads import judge_threads
from hangwatch.diagnosis.text import disagreement
from hangwatch.diagnosis.text.phrases import Ranks, wait_point_text
from hangwatch.diagnosis.text.wording import Scene, Text
from hangwatch.model.kinds import Certainty, Kind, OpState
from hangwatch.model.snapshot import OpRecord
from hangwatch.model.verdict import Collective

HARMLESS_AFTER = 3
"""A difference at which no rank is stuck, and after which the members agree this many
times, is one that this program makes on purpose."""
ENOUGH_TIMES = 2
"""Least number of a call's repetitions at a point of the program for a bucket to be odd there: a
backward pass may have several buckets, and run several times in a row."""
BY_CPP = "a collective issued by C++"

_Sides = tuple[Ranks, Ranks]
"""The ranks that may be at fault, and the others."""


def disputes(job: Job, waits: Iterable[Wait], ended: Mapping[int, Ending]) -> dict[int, int]:
    """The first disputed slot by gid, for the groups in which a rank is stuck.

    A member may have passed it: gloo lets ranks through a mismatch, and these ranks wait for the
    others in a later slot.
    """
    stuck: dict[int, set[int]] = {}
    for wait in waits:
        if isinstance(wait.wait_point, Slot):
            stuck.setdefault(wait.wait_point.gid, set()).add(wait.wait_point.seq)
    for rank in ended:
        call = last_call(job, rank)
        if call is not None and not call.p2p:
            stuck.setdefault(job.gid(call.group), set()).add(call.seq)
    firsts = {gid: _first_dispute(job, gid, seqs) for gid, seqs in stuck.items()}
    return {gid: first for gid, first in firsts.items() if first is not None}


def _first_dispute(job: Job, gid: int, stuck: set[int]) -> int | None:
    last = max(stuck)
    slots = job.slots(gid)
    candidate: tuple[int, Split] | None = None
    agreed = 0
    for seq in sorted(seq for seq in slots if seq <= last):
        split = split_of(slots[seq])
        if candidate is None:
            if split is not None:
                candidate, agreed = (seq, split), 0
        elif split is None and _both_there(candidate[1], slots[seq]):
            agreed += 1
        elif split is not None and agreed >= HARMLESS_AFTER:
            candidate, agreed = (seq, split), 0
        if candidate is not None and candidate[0] in stuck:
            return candidate[0]
        if agreed >= HARMLESS_AFTER:
            candidate = None if split is None else candidate
            agreed = 0 if candidate is None else agreed
    return candidate[0] if candidate is not None else None


def _both_there(split: Split, records: Mapping[int, object]) -> bool:
    return all(any(rank in records for rank in ranks) for _, ranks in split.parts)


def judge_dispute(case: Case, slot: Slot) -> Finding | None:
    """The finding for a disputed slot, None if its members agree after all."""
    split = split_of(case.records_at(slot))
    if split is None:
        return None
    racing = judge_threads(case, slot)
    if racing is not None:
        return racing
    sides = split.parts[-1][1], split.parts[0][1]
    if split.differs is Differs.SPLITS and not _is_elsewhere(case, slot, sides):
        return _other_splits(case, slot, split)
    majority, *rest = (ranks for _, ranks in split.parts)
    if len(majority) == len(rest[0]):
        return _without_majority(case, slot, split)
    culprits = tuple(sorted(rank for ranks in rest for rank in ranks))
    sides = culprits, majority
    proved = _is_final(case, slot) and is_majority(majority, case.job.members(slot.gid))
    hang = Certainty.PROVED if proved else Certainty.LIKELY
    # A majority with a new call against a usual one does not prove which is wrong.
    as_ever = usual_side(case.job, slot, split) == culprits or (
        split.differs is Differs.OP and _may_be_new(case, slot, sides[::-1])
    )
    certainty = Certainty.LIKELY if as_ever else hang
    return replace(_blame(case, slot, split, sides, certainty), hang=hang)


def judge_lines(case: Case, slot: Slot) -> Finding | None:
    """A few came from another line, with another size: all that differs where sizes may.

    None where all came from one line, or as many from one as from another.
    """
    records = case.records_at(slot)
    lines = Counter(step(record) for record in records.values())
    if len(lines) < 2 or len(records) < len(case.job.members(slot.gid)):  # noqa: PLR2004 (a pair)
        return None
    (common, most), (_, next_most) = lines.most_common(2)
    others = tuple(sorted(rank for rank, record in records.items() if step(record) == common))
    culprits = tuple(sorted(records.keys() - {*others}))
    if {records[rank].shape for rank in others} & {records[rank].shape for rank in culprits}:
        return None
    finding = _other_shape(case, slot, (culprits, others), Certainty.POSSIBLE)
    if most == next_most:
        finding = replace(finding, culprits=tuple(sorted(records)), victims=())
    return replace(finding, final=False)


def judge_aborted(case: Case, slot: Slot) -> Finding | None:
    """A few passed another size to a list all_gather, and gloo aborted a rank that received it.

    The backend may allow different sizes, so only the abort shows that it did not. None if no
    majority passed one size.
    """
    records = case.records_at(slot)
    if {record.wire for record in records.values()} != {"all_gather"}:
        return None
    usual, most = Counter(record.shape for record in records.values()).most_common(1)[0]
    culprits = tuple(sorted(rank for rank, record in records.items() if record.shape != usual))
    if not culprits or 2 * most <= len(case.job.members(slot.gid)):
        return None
    others = tuple(sorted(records.keys() - {*culprits}))
    finding = _other_shape(case, slot, (culprits, others), Certainty.LIKELY)
    return replace(finding, victims=others, final=True)


def judge_unrecorded(case: Case, slot: Slot) -> Finding | None:
    """The disagreement at a full slot where some members issued from C++ an unrecorded call.

    Without a Flight Recorder (gloo before PyTorch 2.8, or a buffer of size 0) the
    counters say only that a rank has reached the slot. Where its page, which knows
    all that Python issues, knows of no call there, C++ made it: DDP's reducer, a
    functional collective. Members for which Python made it are another side then.
    None where all are known.
    """
    members = case.job.members(slot.gid)
    unknown = [rank for rank in members if case.job.record(rank, slot) is None]
    if not 0 < len(unknown) < len(members):
        return None
    if not all(_page_would_know(case, rank, slot) for rank in unknown):
        return None
    known = [case.job.record(rank, slot) for rank in members]
    if not any(record is not None and record.source == "page" for record in known):
        return None  # C++ made it there as well
    key = case.job.keys[slot.gid]
    for rank in unknown:
        call = OpRecord(
            key, BY_CPP, BY_CPP, slot.seq, p2p=False, state=OpState.ISSUED, source="counters"
        )
        case.job.assume(rank, slot, call)
    finding = judge_dispute(case, slot)
    if finding is None:
        return None
    return replace(finding, certainty=finding.certainty.at_most(Certainty.LIKELY), final=False)


def _page_would_know(case: Case, rank: int, slot: Slot) -> bool:
    """Return True if a Python call there would still be in the rank's ring."""
    snapshot = case.job.ranks.get(rank)
    if snapshot is None or snapshot.flight:
        return False
    ops = case.job.ops.get(rank, ())
    if rank in case.ended and not ops:
        # Either nothing of its ring is left, or Python never made a call.
        progress = case.job.progress.get(rank, {}).get(slot.gid)
        return progress is not None and progress.by_python == 0
    seqs = [record.seq for gid, record in ops if gid == slot.gid and not record.p2p]
    if seqs:
        return min(seqs) < slot.seq
    first: dict[int, int] = {}
    for gid, record in ops:
        if record.p2p:
            first.setdefault(gid, record.seq)
    return all(seq <= 1 for seq in first.values())  # else the ring has wrapped since


# --- The side at fault -------------------------------------------------------------------


def _without_majority(case: Case, slot: Slot, split: Split) -> Finding:
    """There is no majority: the source and the earlier calls decide, if they can."""
    known = sum(len(ranks) for _, ranks in split.parts)
    # Unknown members may be the majority.
    whole = known == len(case.job.members(slot.gid))
    if len(split.parts) == 2 and whole:  # noqa: PLR2004 (a pair of sides)
        one, other = (ranks for _, ranks in split.parts)
        left = case.departures.ranks & {*one, *other}
        usual = usual_side(case.job, slot, split)
        odd = [
            sides
            for sides in ((one, other), (other, one))
            # The unknown rest of a side did the same.
            if (
                left == {*sides[0]}
                if left
                else usual == sides[1] or (usual is None and _is_odd(case, slot, sides))
            )
        ]
        if len(odd) == 1:
            blamed = _blame(case, slot, split, odd[0], Certainty.LIKELY)
            if left or usual is None:
                return blamed
            return replace(blamed, text=disagreement.as_usual(blamed.text, odd[0][1]))
    candidates = tuple(sorted(rank for _, ranks in split.parts for rank in ranks))
    sites = [(r, s) for _, r in split.parts if (s := case.site_at(r[0], slot)) is not None]
    is_op = split.differs is Differs.OP
    named = "collective" if is_op else _op(case, slot, candidates[0])
    site, other_site = [*(site for _, site in sites), None, None][:2]
    scene = Scene(candidates, (), "", site, other_site)
    text = disagreement.undecided(split, wait_point_text(case.job, slot, named), sites)
    kind = Kind.OP_MISMATCH if is_op else Kind.SIGNATURE_MISMATCH
    finding = _finding(case, slot, kind, scene, text)
    return replace(
        finding,
        hang=Certainty.LIKELY if finding.final and whole else None,
        different_calls=bool(_by_cpp(case, slot, *(ranks for _, ranks in split.parts))),
        differs=split.differs,
    )


def _is_elsewhere(case: Case, slot: Slot, sides: _Sides) -> bool:
    """Return True if the first of two sides always reached the line of the other at this point.

    Then they did not enter one call with two signatures.
    """
    records = [case.job.record(side[0], slot) for side in sides]
    lines = {record.site for record in records if record is not None and record.site is not None}
    return len(lines) > 1 and _is_odd(case, slot, sides)


def _is_odd(case: Case, slot: Slot, sides: _Sides) -> bool:
    """Return True if the first of two sides made a known call where it never came before."""
    here = case.job.record(sides[0][0], slot)
    return (
        here is not None and _is_new(case, slot, sides) and step(here) in _made(case, slot, sides)
    )


def _may_be_new(case: Case, slot: Slot, sides: _Sides) -> bool:
    """Return True if its call is new, or may be by calls before it that are not known any more."""
    made = _made(case, slot, sides)
    return _is_new(case, slot, sides) or (len(made) < slot.seq - 1 and expected(made) is None)


def _is_new(case: Case, slot: Slot, sides: _Sides) -> bool:
    """Return True if the call is new on the first of two sides, and usual on the other."""
    here, there = (case.job.record(side[0], slot) for side in sides)
    if here is None or there is None:
        return False
    usual = expected(_made(case, slot, sides), ENOUGH_TIMES if here.site is None else 1)
    return usual is not None and step(here) not in usual and step(there) in usual


def _made(case: Case, slot: Slot, sides: _Sides) -> list[Step]:
    """The calls before a slot that are known of one of two sides: until then both made them."""
    slots, both = case.job.slots(slot.gid), [side[0] for side in sides]
    return [
        step(known)
        for seq in sorted(slots)
        if seq < slot.seq
        for known in [next((slots[seq][rank] for rank in both if rank in slots[seq]), None)]
        if known is not None
    ]


def _is_final(case: Case, slot: Slot) -> bool:
    """Return True if a rank is stuck in it, or in a later disputed slot that all are in.

    Or was aborted for it: for a call that a thread of gloo's runs, no rank need be waiting. A rank
    that has passed it, and waits for one that is still to come, may get past that as well.
    """
    slots, members = case.job.slots(slot.gid), case.job.members(slot.gid)
    ends = (case.ended[rank] for rank in members if rank in case.ended)
    return any(end.cause is Cause.ECHO and end.how is How.SIGNAL for end in ends) or any(
        isinstance(wait_point, Slot)
        and wait_point.gid == slot.gid
        and wait_point.seq >= slot.seq
        and (
            wait_point == slot
            or (
                all(case.job.arrived(rank, wait_point) for rank in members)
                and split_of(slots.get(wait_point.seq, {})) is not None
            )
        )
        for wait_point in case.graph.at
    )


# --- The finding -------------------------------------------------------------------------


def _blame(case: Case, slot: Slot, split: Split, sides: _Sides, certainty: Certainty) -> Finding:
    """The finding with the first of two sides as culprits."""
    if split.differs is not Differs.OP and not _is_elsewhere(case, slot, sides):
        return _other_signature(case, slot, split, sides, certainty)
    culprits, others = sides
    scene = _scene(case, slot, sides, UNNAMED)
    entered: dict[str, list[int]] = defaultdict(list)
    for rank in culprits:
        entered[_op(case, slot, rank)].append(rank)
    mine = [(tuple(ranks), op) for op, ranks in entered.items()]
    text = disagreement.other_op(scene, mine, _op(case, slot, others[0]))
    return replace(_finding(case, slot, Kind.OP_MISMATCH, scene, text), certainty=certainty)


def _other_shape(case: Case, slot: Slot, sides: _Sides, certainty: Certainty) -> Finding:
    """The finding of two sides with tensors of other shapes."""
    records = case.records_at(slot)
    shapes = ((f"shape {list(records[side[0]].shape)}", side) for side in sides[::-1])
    return _other_signature(case, slot, Split(Differs.SHAPE, tuple(shapes)), sides, certainty)


def _other_signature(
    case: Case, slot: Slot, split: Split, sides: _Sides, certainty: Certainty
) -> Finding:
    culprits = sides[0]
    others = next(ranks for _, ranks in split.parts if not {*ranks} & {*culprits})
    scene = _scene(case, slot, (culprits, others), _op(case, slot, culprits[0]))
    by_cpp = _by_cpp(case, slot, culprits, others)
    text = disagreement.signature(scene, split, by_cpp)
    finding = _finding(case, slot, Kind.SIGNATURE_MISMATCH, scene, text)
    return replace(
        finding, certainty=certainty, different_calls=bool(by_cpp), differs=split.differs
    )


def _other_splits(case: Case, slot: Slot, split: Split) -> Finding:
    """Ranks that send another amount than is taken, or take another than is sent."""
    pairs = misfits(case.records_at(slot))
    culprits = split.parts[-1][1]
    alone = len(culprits) == 1
    named = {rank for pair in pairs for rank in (pair.sender, pair.receiver)}
    partners = tuple(sorted(named - {*culprits})) if alone else ()
    scene = _scene(case, slot, (culprits, partners), _op(case, slot, culprits[0]))
    text = disagreement.exchange(scene, pairs)
    finding = _finding(case, slot, Kind.SIGNATURE_MISMATCH, scene, text)
    certainty = Certainty.LIKELY if alone else Certainty.POSSIBLE
    return replace(finding, certainty=certainty, differs=split.differs)


def _scene(case: Case, slot: Slot, sides: _Sides, op: str) -> Scene:
    """Both sides at the lines from which they entered a slot."""
    site, other_site = (case.site_at(side[0], slot) if side else None for side in sides)
    lines = case.sites_at((*sides[0], *sides[1]), slot)
    return Scene(*sides, wait_point_text(case.job, slot, op), site, other_site, lines)


def _finding(case: Case, slot: Slot, kind: Kind, scene: Scene, text: Text) -> Finding:
    """The possible finding, of all that wait at the slot and at the later ones of its group."""
    culprits = scene.culprits
    points = [
        slot,
        *(
            wait_point
            for wait_point, cause in case.graph.because.items()
            if cause == slot and isinstance(wait_point, Slot)
        ),
    ]
    waits = tuple(wait for point in points for wait in case.waits_at(point))
    record = case.job.record(culprits[0], slot)
    finding = Finding(
        kind=kind,
        certainty=Certainty.POSSIBLE,
        text=text,
        final=_is_final(case, slot),
        **case.about(slot, scene, case.victims_of(culprits, points), waits),
    )
    called = collective_of(record) if record is not None else Collective("", slot.seq)
    return replace(finding, collective=called)


def _by_cpp(case: Case, slot: Slot, *sides: Ranks) -> Ranks:
    """The ranks of which only the Flight Recorder knows the call, if it is not so of all."""
    records = {side: case.job.record(side[0], slot) for side in sides}
    of_flight = [side for side, record in records.items() if record and record.source == "flight"]
    if any(record and record.source == "older" for record in records.values()):
        return ()
    if len(of_flight) == len(sides):
        return ()  # where the call of all is one of C++'s, only its tensor differs
    return tuple(rank for side in of_flight for rank in side)


def _op(case: Case, slot: Slot, rank: int) -> str:
    record = case.job.record(rank, slot)
    return name_of(record) if record else UNNAMED
