"""Judges disputed places, at which the members of a group entered different things."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hangwatch.diagnosis.facts.endings import Cause, Ending, How, last_call
from hangwatch.diagnosis.facts.history import Step, expected, step
from hangwatch.diagnosis.facts.job import Job, is_majority
from hangwatch.diagnosis.facts.signatures import Differs, Split, misfits, split_of, usual_side
from hangwatch.diagnosis.facts.wait_points import UNNAMED, Place, Wait
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
"""So often a call has to have come at a point of the program for a bucket to be odd there: a
backward pass may have several, and come several times in a row."""
BY_CPP = "a collective issued by C++"

_Sides = tuple[Ranks, Ranks]
"""The ranks that may be at fault, and the others."""


def disputes(job: Job, waits: Iterable[Wait], ended: Mapping[int, Ending]) -> dict[int, int]:
    """The first disputed place by gid, for the groups in which a rank is stuck.

    A member may have passed it: gloo lets ranks through a mismatch, and the ones
    that went on wait for the others in a later place.
    """
    stuck: dict[int, set[int]] = {}
    for wait in waits:
        if isinstance(wait.wait_point, Place):
            stuck.setdefault(wait.wait_point.gid, set()).add(wait.wait_point.seq)
    for rank in ended:
        call = last_call(job, rank)
        if call is not None and not call.p2p:
            stuck.setdefault(job.gid(call.group), set()).add(call.seq)
    firsts = {gid: _first_dispute(job, gid, seqs) for gid, seqs in stuck.items()}
    return {gid: first for gid, first in firsts.items() if first is not None}


def _first_dispute(job: Job, gid: int, stuck: set[int]) -> int | None:
    last = max(stuck)
    places = job.places(gid)
    candidate: tuple[int, Split] | None = None
    agreed = 0
    for seq in sorted(seq for seq in places if seq <= last):
        split = split_of(places[seq])
        if candidate is None:
            if split is not None:
                candidate, agreed = (seq, split), 0
        elif split is None and _both_there(candidate[1], places[seq]):
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


def judge_dispute(case: Case, place: Place) -> Finding | None:
    """The finding for a disputed place, None if its members agree after all."""
    split = split_of(case.records_at(place))
    if split is None:
        return None
    racing = judge_threads(case, place)
    if racing is not None:
        return racing
    if split.differs is Differs.SPLITS:
        return _other_splits(case, place, split)
    majority, *rest = (ranks for _, ranks in split.parts)
    if len(majority) == len(rest[0]):
        return _without_majority(case, place, split)
    culprits = tuple(sorted(rank for ranks in rest for rank in ranks))
    sides = culprits, majority
    proved = _is_final(case, place) and is_majority(majority, case.job.members(place.gid))
    hang = Certainty.PROVED if proved else Certainty.LIKELY
    # That most came with something new, and these as ever, does not prove who is wrong.
    as_ever = usual_side(case.job, place, split) == culprits or (
        split.differs is Differs.OP and _may_be_new(case, place, sides[::-1])
    )
    certainty = Certainty.LIKELY if as_ever else hang
    return replace(_blame(case, place, split, sides, certainty), hang=hang)


def judge_lines(case: Case, place: Place) -> Finding | None:
    """A few came from another line, with another size: all that differs where sizes may.

    None where all came from one line, or as many from one as from another.
    """
    records = case.records_at(place)
    lines = Counter(step(record) for record in records.values())
    if len(lines) < 2 or len(records) < len(case.job.members(place.gid)):  # noqa: PLR2004 (a pair)
        return None
    (common, most), (_, next_most) = lines.most_common(2)
    others = tuple(sorted(rank for rank, record in records.items() if step(record) == common))
    culprits = tuple(sorted(records.keys() - {*others}))
    if {records[rank].shape for rank in others} & {records[rank].shape for rank in culprits}:
        return None
    finding = _other_shape(case, place, (culprits, others), Certainty.POSSIBLE)
    if most == next_most:
        finding = replace(finding, culprits=tuple(sorted(records)), victims=())
    return replace(finding, final=False)


def judge_aborted(case: Case, place: Place) -> Finding | None:
    """A few brought a list of all_gather another size, and gloo aborted a rank that got it.

    The backend may allow such sizes, so that only the abort shows that it did not. None
    where no majority brought one size.
    """
    records = case.records_at(place)
    if {record.wire for record in records.values()} != {"all_gather"}:
        return None
    usual, most = Counter(record.shape for record in records.values()).most_common(1)[0]
    culprits = tuple(sorted(rank for rank, record in records.items() if record.shape != usual))
    if not culprits or 2 * most <= len(case.job.members(place.gid)):
        return None
    others = tuple(sorted(records.keys() - {*culprits}))
    finding = _other_shape(case, place, (culprits, others), Certainty.LIKELY)
    return replace(finding, victims=others, final=True)


def judge_unrecorded(case: Case, place: Place) -> Finding | None:
    """The disagreement at a full place where some members issued from C++ an unrecorded call.

    Without a Flight Recorder (gloo before PyTorch 2.8, or a buffer of size 0) the
    counters say only that a rank has reached the place. Where its page, which knows
    all that Python issues, knows of no call there, C++ made it: DDP's reducer, a
    functional collective. Members for which Python made it are another side then.
    None where all are known.
    """
    members = case.job.members(place.gid)
    unknown = [rank for rank in members if case.job.record(rank, place) is None]
    if not 0 < len(unknown) < len(members):
        return None
    if not all(_page_would_know(case, rank, place) for rank in unknown):
        return None
    known = [case.job.record(rank, place) for rank in members]
    if not any(record is not None and record.source == "page" for record in known):
        return None  # C++ made it there as well
    key = case.job.keys[place.gid]
    for rank in unknown:
        call = OpRecord(
            key, BY_CPP, BY_CPP, place.seq, p2p=False, state=OpState.ISSUED, source="counters"
        )
        case.job.assume(rank, place, call)
    finding = judge_dispute(case, place)
    if finding is None:
        return None
    return replace(finding, certainty=finding.certainty.at_most(Certainty.LIKELY), final=False)


def _page_would_know(case: Case, rank: int, place: Place) -> bool:
    """True if a Python call there would still be in the rank's ring."""
    snapshot = case.job.ranks.get(rank)
    if snapshot is None or snapshot.flight:
        return False
    ops = case.job.ops.get(rank, ())
    if rank in case.ended and not ops:
        # Either nothing of its ring is left, or Python never made a call.
        progress = case.job.progress.get(rank, {}).get(place.gid)
        return progress is not None and progress.by_python == 0
    seqs = [record.seq for gid, record in ops if gid == place.gid and not record.p2p]
    if seqs:
        return min(seqs) < place.seq
    first: dict[int, int] = {}
    for gid, record in ops:
        if record.p2p:
            first.setdefault(gid, record.seq)
    return all(seq <= 1 for seq in first.values())  # else the ring has wrapped since


# --- The side at fault -------------------------------------------------------------------


def _without_majority(case: Case, place: Place, split: Split) -> Finding:
    """No side is outvoted: the source and what came before decide, if they can."""
    known = sum(len(ranks) for _, ranks in split.parts)
    # Where members are not known it may be that they are the majority.
    whole = known == len(case.job.members(place.gid))
    if len(split.parts) == 2 and whole:  # noqa: PLR2004 (a pair of sides)
        one, other = (ranks for _, ranks in split.parts)
        left = case.departures.ranks & {*one, *other}
        usual = usual_side(case.job, place, split)
        odd = [
            sides
            for sides in ((one, other), (other, one))
            # Of a side that is known in part, the rest did the same.
            if (
                left == {*sides[0]}
                if left
                else usual == sides[1] or (usual is None and _is_odd(case, place, sides))
            )
        ]
        if len(odd) == 1:
            blamed = _blame(case, place, split, odd[0], Certainty.LIKELY)
            if left or usual is None:
                return blamed
            return replace(blamed, text=disagreement.as_usual(blamed.text, odd[0][1]))
    candidates = tuple(sorted(rank for _, ranks in split.parts for rank in ranks))
    sites = [(r, s) for _, r in split.parts if (s := case.site_at(r[0], place)) is not None]
    is_op = split.differs is Differs.OP
    named = "collective" if is_op else _op(case, place, candidates[0])
    site, other_site = [*(site for _, site in sites), None, None][:2]
    scene = Scene(candidates, (), "", site, other_site)
    text = disagreement.undecided(split, wait_point_text(case.job, place, named), sites)
    kind = Kind.OP_MISMATCH if is_op else Kind.SIGNATURE_MISMATCH
    finding = _finding(case, place, kind, scene, text)
    return replace(
        finding,
        hang=Certainty.LIKELY if finding.final and whole else None,
        apart=bool(_by_cpp(case, place, *(ranks for _, ranks in split.parts))),
        differs=split.differs,
    )


def _is_elsewhere(case: Case, place: Place, sides: _Sides) -> bool:
    """True if the first of two sides always came to the line of the other at this point.

    Then they did not enter one call with two signatures.
    """
    records = [case.job.record(side[0], place) for side in sides]
    lines = {record.site for record in records if record is not None and record.site is not None}
    return len(lines) > 1 and _is_odd(case, place, sides)


def _is_odd(case: Case, place: Place, sides: _Sides) -> bool:
    """True if the first of two sides made a known call where it never came before."""
    here = case.job.record(sides[0][0], place)
    return (
        here is not None and _is_new(case, place, sides) and step(here) in _made(case, place, sides)
    )


def _may_be_new(case: Case, place: Place, sides: _Sides) -> bool:
    """True if its call is new, or may be by calls before it that are not known any more."""
    made = _made(case, place, sides)
    return _is_new(case, place, sides) or (len(made) < place.seq - 1 and expected(made) is None)


def _is_new(case: Case, place: Place, sides: _Sides) -> bool:
    """True if the first of two sides made a call where it never came before, the other as ever."""
    here, there = (case.job.record(side[0], place) for side in sides)
    if here is None or there is None:
        return False
    usual = expected(_made(case, place, sides), ENOUGH_TIMES if here.site is None else 1)
    return usual is not None and step(here) not in usual and step(there) in usual


def _made(case: Case, place: Place, sides: _Sides) -> list[Step]:
    """The calls before a place that are known of one of two sides: until then both made them."""
    places, both = case.job.places(place.gid), [side[0] for side in sides]
    return [
        step(known)
        for seq in sorted(places)
        if seq < place.seq
        for known in [next((places[seq][rank] for rank in both if rank in places[seq]), None)]
        if known is not None
    ]


def _is_final(case: Case, place: Place) -> bool:
    """True if a rank is stuck in it, or in a later disputed place that all are in.

    Or was aborted for it: for a call that a thread of gloo's runs, no rank need be waiting. A rank
    that has passed it, and waits for one that is still to come, may get past that as well.
    """
    places, members = case.job.places(place.gid), case.job.members(place.gid)
    ends = (case.ended[rank] for rank in members if rank in case.ended)
    return any(end.cause is Cause.ECHO and end.how is How.SIGNAL for end in ends) or any(
        isinstance(wait_point, Place)
        and wait_point.gid == place.gid
        and wait_point.seq >= place.seq
        and (
            wait_point == place
            or (
                all(case.job.arrived(rank, wait_point) for rank in members)
                and split_of(places.get(wait_point.seq, {})) is not None
            )
        )
        for wait_point in case.graph.at
    )


# --- The finding -------------------------------------------------------------------------


def _blame(case: Case, place: Place, split: Split, sides: _Sides, certainty: Certainty) -> Finding:
    """The finding with the first of two sides as culprits."""
    if split.differs is not Differs.OP and not _is_elsewhere(case, place, sides):
        return _other_signature(case, place, split, sides, certainty)
    culprits, others = sides
    scene = _scene(case, place, sides, UNNAMED)
    entered: dict[str, list[int]] = defaultdict(list)
    for rank in culprits:
        entered[_op(case, place, rank)].append(rank)
    mine = [(tuple(ranks), op) for op, ranks in entered.items()]
    text = disagreement.other_op(scene, mine, _op(case, place, others[0]))
    return replace(_finding(case, place, Kind.OP_MISMATCH, scene, text), certainty=certainty)


def _other_shape(case: Case, place: Place, sides: _Sides, certainty: Certainty) -> Finding:
    """The finding of two sides with tensors of other shapes."""
    records = case.records_at(place)
    shapes = ((f"shape {list(records[side[0]].shape)}", side) for side in sides[::-1])
    return _other_signature(case, place, Split(Differs.SHAPE, tuple(shapes)), sides, certainty)


def _other_signature(
    case: Case, place: Place, split: Split, sides: _Sides, certainty: Certainty
) -> Finding:
    culprits = sides[0]
    others = next(ranks for _, ranks in split.parts if not {*ranks} & {*culprits})
    scene = _scene(case, place, (culprits, others), _op(case, place, culprits[0]))
    by_cpp = _by_cpp(case, place, culprits, others)
    text = disagreement.signature(scene, split, by_cpp)
    finding = _finding(case, place, Kind.SIGNATURE_MISMATCH, scene, text)
    return replace(finding, certainty=certainty, apart=bool(by_cpp), differs=split.differs)


def _other_splits(case: Case, place: Place, split: Split) -> Finding:
    """Ranks that send another amount than is taken, or take another than is sent."""
    pairs = misfits(case.records_at(place))
    culprits = split.parts[-1][1]
    alone = len(culprits) == 1
    named = {rank for pair in pairs for rank in (pair.sender, pair.receiver)}
    partners = tuple(sorted(named - {*culprits})) if alone else ()
    scene = _scene(case, place, (culprits, partners), _op(case, place, culprits[0]))
    text = disagreement.exchange(scene, pairs)
    finding = _finding(case, place, Kind.SIGNATURE_MISMATCH, scene, text)
    certainty = Certainty.LIKELY if alone else Certainty.POSSIBLE
    return replace(finding, certainty=certainty, differs=split.differs)


def _scene(case: Case, place: Place, sides: _Sides, op: str) -> Scene:
    """Both sides at the lines from which they entered a place."""
    site, other_site = (case.site_at(side[0], place) if side else None for side in sides)
    lines = case.sites_at((*sides[0], *sides[1]), place)
    return Scene(*sides, wait_point_text(case.job, place, op), site, other_site, lines)


def _finding(case: Case, place: Place, kind: Kind, scene: Scene, text: Text) -> Finding:
    """The possible finding, of all that wait at the place and at the later ones of its group."""
    culprits = scene.culprits
    points = [
        place,
        *(
            wait_point
            for wait_point, cause in case.graph.because.items()
            if cause == place and isinstance(wait_point, Place)
        ),
    ]
    waits = tuple(wait for point in points for wait in case.waits_at(point))
    record = case.job.record(culprits[0], place)
    finding = Finding(
        kind=kind,
        certainty=Certainty.POSSIBLE,
        text=text,
        final=_is_final(case, place),
        **case.about(place, scene, case.victims_of(culprits, points), waits),
    )
    called = collective_of(record) if record is not None else Collective("", place.seq)
    return replace(finding, collective=called)


def _by_cpp(case: Case, place: Place, *sides: Ranks) -> Ranks:
    """The ranks of which only the Flight Recorder knows the call, if it is not so of all."""
    records = {side: case.job.record(side[0], place) for side in sides}
    of_flight = [side for side, record in records.items() if record and record.source == "flight"]
    if any(record and record.source == "older" for record in records.values()):
        return ()
    if len(of_flight) == len(sides):
        return ()  # where the call of all is one of C++'s, only its tensor differs
    return tuple(rank for side in of_flight for rank in side)


def _op(case: Case, place: Place, rank: int) -> str:
    record = case.job.record(rank, place)
    return name_of(record) if record else UNNAMED
