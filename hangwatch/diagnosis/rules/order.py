"""Why calls of one line come in another order on each rank: a loop over what has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangwatch.diagnosis.rules.case import MOST_COMPARED
from hangwatch.diagnosis.rules.splits import position
from hangwatch.diagnosis.source.unordered import Unordered, loop_without_order
from hangwatch.diagnosis.text import reasons
from hangwatch.types.kinds import Certainty, Kind, What
from hangwatch.types.verdict import RootCause

if TYPE_CHECKING:
    from hangwatch.diagnosis.rules.case import Case, Finding

_OF_ORDER = frozenset(
    {
        Kind.ORDER_INVERSION,
        Kind.SIGNATURE_MISMATCH,
        Kind.OP_MISMATCH,
        Kind.MISSING_PEER,
        Kind.INIT_INCOMPLETE,
    }
)


def without_order(case: Case, finding: Finding) -> RootCause | None:
    """The loop over a set, or over files, in which all of a finding are at one line."""
    if finding.kind not in _OF_ORDER:
        return None
    ranks = {*finding.culprits[:2], *(wait.rank for wait in finding.waits)}
    places = [
        at for rank in sorted(ranks)[:MOST_COMPARED] if (at := position(case, rank)) is not None
    ]
    if len(places) < 2 or len({at.line for at in places}) > 1:  # noqa: PLR2004 (two sides)
        return None
    for line in places[0].frames[::-1]:
        found = loop_without_order(case.source.program, line)
        if found is not None:
            loop, over = found
            site = case.site_of_line(line.file, loop.lineno)
            why = reasons.without_order(site, over)
            # Else sizes may differ that belong to one element: then it is another reason.
            sure = over is Unordered.SET and finding.kind is Kind.ORDER_INVERSION
            certainty = Certainty.LIKELY if sure else Certainty.POSSIBLE
            return RootCause(
                What.DIFFERENT_ORDER, finding.certainty.at_most(certainty), site, why, (why,)
            )
    return None
