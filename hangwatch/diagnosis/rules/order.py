"""Finds calls that are made in no fixed order: in a loop over a set or files, or by finalizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, takewhile

from hangwatch.diagnosis.rules.case import FEW, Case, Finding
from hangwatch.diagnosis.rules.splits import position
from hangwatch.diagnosis.source.alike import Unordered, loop_without_order
from hangwatch.diagnosis.text import disagreement, reasons
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Certainty, Kind, What
from hangwatch.model.verdict import RootCause

_OF_SIDES = frozenset({Kind.ORDER_INVERSION, Kind.SIGNATURE_MISMATCH, Kind.OP_MISMATCH})
_OF_ORDER = _OF_SIDES | {Kind.MISSING_PEER, Kind.INIT_INCOMPLETE}


def of_all_in_loop(case: Case, finding: Finding) -> Finding:
    """The finding, of all that wait in a loop over a set: its order is no rank's departure."""
    if finding.settled or finding.kind not in _OF_SIDES:
        return finding
    waiting = {wait.rank for wait in finding.waits if not wait.inferred}
    places = {rank: position(case, rank) for rank in sorted({*finding.culprits, *waiting})}
    first = places[finding.culprits[0]] if finding.culprits else None
    candidates = tuple(
        rank for rank, at in places.items() if at is not None and first and at.line == first.line
    )
    loop = _loop(case, candidates[:FEW])
    if loop is None or loop[1] is not Unordered.SET or candidates == finding.culprits:
        return finding
    return replace(finding.of_any(candidates), text=disagreement.in_no_order(finding.text))


def without_order(case: Case, finding: Finding, *, in_one_call: bool = False) -> RootCause | None:
    """The source of another order on each rank: a finalizer, a loop over a set, or over files.

    in_one_call: also a loop from which one call led to the lines of all.
    """
    if finding.kind not in _OF_ORDER:
        return None
    others = (wait.rank for wait in finding.waits if wait.rank not in finding.culprits)
    some = (*finding.culprits[:FEW], *islice(others, FEW))
    site = _finalizer(case, some)
    if site is not None:
        why = reasons.in_finalizer()
        return finding.cause(What.DIFFERENT_ORDER, Certainty.LIKELY, site, why)
    loop = _loop(case, some, in_one_call=in_one_call)
    if loop is None:
        return None
    site, over = loop
    # Otherwise the sizes of one element may differ: that is another reason.
    sure = over is Unordered.SET and finding.kind is Kind.ORDER_INVERSION
    at_most = Certainty.LIKELY if sure else Certainty.POSSIBLE
    return finding.cause(What.DIFFERENT_ORDER, at_most, site, reasons.without_order(site, over))


def _finalizer(case: Case, ranks: Sequence[int]) -> Site | None:
    """The line in a ``__del__`` that one side is at, while the other is in none."""
    lines = set()
    for rank in ranks:
        frames = (frame for frame in case.stack(rank) if frame.function.endswith("__del__"))
        frame = next(frames, None)
        lines.add((frame.file, frame.line) if frame is not None else None)
    known = [line for line in lines if line is not None]
    return case.site_of_line(*known[0]) if len(known) == 1 and None in lines else None


def _loop(
    case: Case, ranks: Sequence[int], *, in_one_call: bool = False
) -> tuple[Site, Unordered] | None:
    """The loop over a set, or over files, in which all are at one line, or in_one_call."""
    places = [at for rank in ranks if (at := position(case, rank)) is not None]
    if len(places) < 2:  # noqa: PLR2004 (two sides)
        return None
    frames = places[0].frames
    if len({at.line for at in places}) > 1:
        if not in_one_call:
            return None
        shared = zip(*(at.frames for at in places), strict=False)
        frames = tuple(lines[0] for lines in takewhile(lambda some: len({*some}) == 1, shared))
    for depth, line in reversed([*enumerate(frames)]):
        found = loop_without_order(case.source.program, line, frames[:depth])
        if found is not None:
            return case.site_of_line(line.file, found[0].lineno), found[1]
    return None
