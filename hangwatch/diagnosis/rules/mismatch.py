"""Judges a place whose members entered different things there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hangwatch.diagnosis.facts.endings import Cause, How
from hangwatch.diagnosis.facts.history import Step, expected, step
from hangwatch.diagnosis.facts.job import is_majority
from hangwatch.diagnosis.facts.signatures import Differs, Split, misfits, split_of, usual_side
from hangwatch.diagnosis.facts.wait_points import UNNAMED, Place, Wait
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.threads import judge_threads
from hangwatch.diagnosis.text import disagreement
from hangwatch.diagnosis.text.phrases import Ranks, wait_point_text
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.kinds import Certainty, Kind, Reason
from hangwatch.model.snapshot import OpRecord
from hangwatch.model.verdict import Collective

ENOUGH_TIMES = 2
"""So often a call has to have come at a point of the program for a bucket to be odd there: a
backward pass may have several, and come several times in a row."""


def judge_dispute(case: Case, place: Place) -> Finding | None:
    """The finding for a disputed place, None if its members agree after all."""
    found = split_of(case.job.places(place.gid).get(place.seq, {}))
    if found is None:
        return None
    racing = judge_threads(case, place)
    if racing is not None:
        return racing
    if found.differs is Differs.SPLITS:
        return _other_splits(case, place, found)
    parts = [ranks for _, ranks in found.parts]
    majority = parts[0] if len(parts[0]) > len(parts[1]) else None
    if majority is None:
        return _without_majority(case, place, found)
    culprits = tuple(sorted(rank for ranks in parts[1:] for rank in ranks))
    final = _is_final(case, place)
    proved = final and is_majority(majority, case.job.members(place.gid))
    hang = Certainty.PROVED if proved else Certainty.LIKELY
    # That most came with something new, and these as ever, does not prove who is wrong.
    as_ever = usual_side(case.job, place, found) == culprits or (
        found.differs is Differs.OP and _may_be_new(case, place, (majority, culprits))
    )
    certainty = Certainty.LIKELY if as_ever else hang
    return replace(_blame(case, place, found, (culprits, majority), certainty), hang=hang)


def judge_lines(case: Case, place: Place) -> Finding | None:
    """A few came from another line, with another size: all that differs where sizes may.

    None where all came from one line, or as many from one as from another.
    """
    records = case.job.places(place.gid).get(place.seq, {})
    lines = Counter(step(record) for record in records.values())
    if len(lines) < 2 or len(records) < len(case.job.members(place.gid)):  # noqa: PLR2004 (a pair)
        return None
    (common, most), (_, next_most) = lines.most_common(2)
    others = tuple(sorted(rank for rank, record in records.items() if step(record) == common))
    culprits = tuple(sorted(records.keys() - set(others)))
    shapes = [{records[rank].shape for rank in side} for side in (others, culprits)]
    if shapes[0] & shapes[1]:
        return None
    decided = most > next_most
    found = Split(
        Differs.SHAPE,
        tuple((f"shape {list(records[side[0]].shape)}", side) for side in (others, culprits)),
    )
    finding = _other_signature(case, place, found, culprits, Certainty.POSSIBLE)
    if not decided:
        everyone = tuple(sorted(records))
        return replace(finding, culprits=everyone, victims=(), final=False)
    return replace(finding, final=False)


def judge_aborted(case: Case, place: Place) -> Finding | None:
    """A few brought a list of all_gather another size, and gloo aborted a rank that got it.

    The backend may allow such sizes, so that only the abort tells that it did not. None
    where no majority brought one size.
    """
    records = case.job.places(place.gid).get(place.seq, {})
    if {record.wire for record in records.values()} != {"all_gather"}:
        return None
    sizes = Counter(record.shape for record in records.values())
    usual, most = sizes.most_common(1)[0]
    culprits = tuple(sorted(rank for rank, record in records.items() if record.shape != usual))
    if not culprits or 2 * most <= len(case.job.members(place.gid)):
        return None
    others = tuple(sorted(records.keys() - set(culprits)))
    found = Split(
        Differs.SHAPE,
        tuple((f"shape {list(records[side[0]].shape)}", side) for side in (others, culprits)),
    )
    finding = _other_signature(case, place, found, culprits, Certainty.LIKELY)
    return replace(finding, victims=others, final=True)


def _blame(
    case: Case, place: Place, found: Split, sides: tuple[Ranks, Ranks], certainty: Certainty
) -> Finding:
    if found.differs is Differs.OP or _is_elsewhere(case, place, sides):
        return _other_op(case, place, sides, certainty)
    return _other_signature(case, place, found, sides[0], certainty)


def _is_elsewhere(case: Case, place: Place, sides: tuple[Ranks, Ranks]) -> bool:
    """Whether the first of two sides always came to the line of the other at this point.

    Then what they entered is not one call with two signatures.
    """
    records = [case.job.record(side[0], place) for side in sides]
    lines = {record.site for record in records if record is not None and record.site is not None}
    return len(lines) > 1 and _is_odd(case, place, sides)


def _is_odd(case: Case, place: Place, sides: tuple[Ranks, Ranks]) -> bool:
    """Whether the first of two sides made a known call where it never came before."""
    here = case.job.record(sides[0][0], place)
    return (
        here is not None and _is_new(case, place, sides) and step(here) in _made(case, place, sides)
    )


def _may_be_new(case: Case, place: Place, sides: tuple[Ranks, Ranks]) -> bool:
    """Whether it is so, or may be by calls before it that are not known any more."""
    made = _made(case, place, sides)
    return _is_new(case, place, sides) or (len(made) < place.seq - 1 and expected(made) is None)


def _is_new(case: Case, place: Place, sides: tuple[Ranks, Ranks]) -> bool:
    """Whether the first of two sides made a call where it never came before, the other as ever."""
    here, there = (case.job.record(side[0], place) for side in sides)
    if here is None or there is None:
        return False
    usual = expected(_made(case, place, sides), ENOUGH_TIMES if here.site is None else 1)
    return usual is not None and step(here) not in usual and step(there) in usual


def _made(case: Case, place: Place, sides: tuple[Ranks, Ranks]) -> list[Step]:
    """The calls before a place that are known of one of two sides: until then both made them."""
    places, both = case.job.places(place.gid), [side[0] for side in sides]
    return [
        step(known)
        for seq in sorted(places)
        if seq < place.seq
        for known in [next((places[seq][rank] for rank in both if rank in places[seq]), None)]
        if known is not None
    ]


def _without_majority(case: Case, place: Place, found: Split) -> Finding:
    """Nobody is outvoted: the source and what came before decide, if they can."""
    known = sum(len(ranks) for _, ranks in found.parts)
    # Where members are not known it may be that they are the majority.
    whole = known == len(case.job.members(place.gid))
    if len(found.parts) == 2 and whole:  # noqa: PLR2004 (a pair of sides)
        one, other = found.parts[0][1], found.parts[1][1]
        left = case.departures.ranks & {*one, *other}
        right = usual_side(case.job, place, found)
        odd = [
            sides
            for sides in ((one, other), (other, one))
            # Of a side that is known in part, the rest did the same.
            if (
                left == {*sides[0]}
                if left
                else right == sides[1] or (right is None and _is_odd(case, place, sides))
            )
        ]
        if len(odd) == 1:
            blamed = _blame(case, place, found, odd[0], Certainty.LIKELY)
            usual = not left and right is not None
            text = disagreement.as_usual(blamed.text, odd[0][1]) if usual else blamed.text
            return replace(blamed, text=text)
    candidates = tuple(sorted(rank for _, ranks in found.parts for rank in ranks))
    sites = [(r, s) for _, r in found.parts if (s := case.site_at(r[0], place)) is not None]
    is_op = found.differs is Differs.OP
    named = "different collectives" if is_op else _op(case, place, candidates[0])
    final = _is_final(case, place)
    return Finding(
        kind=Kind.OP_MISMATCH if is_op else Kind.SIGNATURE_MISMATCH,
        reason=Reason.USER_CODE,
        certainty=Certainty.POSSIBLE,
        culprits=candidates,
        victims=case.victims_of(candidates, _wait_points(case, place)),
        text=disagreement.undecided(found, wait_point_text(case.job, place, named), sites),
        final=final,
        hang=Certainty.LIKELY if final and whole else None,
        wait_point=place,
        collective=_collective(case, place, candidates[0]),
        site=sites[0][1] if sites else None,
        victim_site=sites[1][1] if len(sites) > 1 else None,
        waits=_waits(case, place),
        apart=bool(_by_cpp(case, place, *(ranks for _, ranks in found.parts))),
        differs=found.differs,
    )


def _is_final(case: Case, place: Place) -> bool:
    """Return True if somebody is stuck in it, or in a later disputed place that all are in.

    Or was aborted for it: what a thread of gloo's runs, nobody need be waiting for. Who has passed
    it, and waits for one that is still to come to a later one, may get past that as well.
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


def _other_op(
    case: Case, place: Place, sides: tuple[Ranks, Ranks], certainty: Certainty
) -> Finding:
    culprits, others = sides
    sites = case.site_at(culprits[0], place), case.site_at(others[0], place)
    where = wait_point_text(case.job, place, UNNAMED)
    scene = Scene(culprits, others, where, *sites, case.sites_at((*culprits, *others), place))
    entered = Counter(_op(case, place, rank) for rank in culprits)
    mine = [
        (tuple(rank for rank in culprits if _op(case, place, rank) == op), op) for op in entered
    ]
    return Finding(
        kind=Kind.OP_MISMATCH,
        reason=Reason.USER_CODE,
        certainty=certainty,
        culprits=culprits,
        victims=case.victims_of(culprits, _wait_points(case, place)),
        text=disagreement.other_op(scene, mine, _op(case, place, others[0])),
        final=_is_final(case, place),
        wait_point=place,
        collective=_collective(case, place, culprits[0]),
        site=sites[0],
        victim_site=sites[1],
        waits=_waits(case, place),
    )


def _other_signature(
    case: Case, place: Place, found: Split, culprits: Ranks, certainty: Certainty
) -> Finding:
    site = case.site_at(culprits[0], place)
    others = next(ranks for _, ranks in found.parts if not set(ranks) & set(culprits))
    where = wait_point_text(case.job, place, _op(case, place, culprits[0]))
    sites = case.sites_at((*culprits, *others), place)
    scene = Scene(culprits, others, where, site, case.site_at(others[0], place), sites)
    by_cpp = _by_cpp(case, place, culprits, others)
    return Finding(
        kind=Kind.SIGNATURE_MISMATCH,
        reason=Reason.USER_CODE,
        certainty=certainty,
        culprits=culprits,
        victims=case.victims_of(culprits, _wait_points(case, place)),
        text=disagreement.signature(scene, found, by_cpp),
        final=_is_final(case, place),
        wait_point=place,
        collective=_collective(case, place, culprits[0]),
        site=site,
        victim_site=scene.other_site,
        waits=_waits(case, place),
        apart=bool(by_cpp),
        differs=found.differs,
    )


def _other_splits(case: Case, place: Place, found: Split) -> Finding:
    """Ranks that send another amount than is taken, or take another than is sent."""
    pairs = misfits(case.job.places(place.gid)[place.seq])
    culprits = found.parts[-1][1]
    named = {rank for pair in pairs for rank in (pair.sender, pair.receiver)}
    partners = tuple(sorted(named - {*culprits})) if len(culprits) == 1 else ()
    site = case.site_at(culprits[0], place)
    where = wait_point_text(case.job, place, _op(case, place, culprits[0]))
    scene = Scene(culprits, partners, where, site, sites=case.sites_at(culprits, place))
    return Finding(
        kind=Kind.SIGNATURE_MISMATCH,
        reason=Reason.USER_CODE,
        certainty=Certainty.LIKELY if len(culprits) == 1 else Certainty.POSSIBLE,
        culprits=culprits,
        victims=case.victims_of(culprits, _wait_points(case, place)),
        text=disagreement.exchange(scene, pairs),
        final=_is_final(case, place),
        wait_point=place,
        collective=_collective(case, place, culprits[0]),
        site=site,
        victim_site=case.site_at(partners[0], place) if partners else None,
        waits=_waits(case, place),
        differs=found.differs,
    )


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
    return (record.op or record.wire) if record else UNNAMED


def _collective(case: Case, place: Place, rank: int) -> Collective:
    record: OpRecord | None = case.job.record(rank, place)
    if record is None:
        return Collective("", place.seq)
    return Collective(record.op or record.wire, place.seq, record.dtype, record.shape)


def _wait_points(case: Case, place: Place) -> list[Place]:
    """The disputed place and the later ones of its group in which ranks wait."""
    return [
        place,
        *(
            wait_point
            for wait_point, cause in case.graph.because.items()
            if cause == place and isinstance(wait_point, Place)
        ),
    ]


def _waits(case: Case, place: Place) -> tuple[Wait, ...]:
    return tuple(
        wait for wait_point in _wait_points(case, place) for wait in case.waits_at(wait_point)
    )
