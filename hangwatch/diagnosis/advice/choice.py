"""What to do about a finding: chosen from the table, the most specific first."""

from __future__ import annotations

from collections.abc import Iterable

from hangwatch.diagnosis.advice.facts import NOTHING, Facts
from hangwatch.diagnosis.advice.remedy import Remedy, remedies
from hangwatch.model.kinds import Kind, Reason, What

MAX_ITEMS = 4
ENOUGH = 2
"""So many special items make general ones needless where a rank is just busy."""
_OF_THE_CHANGE = frozenset(
    {"agree", "batches", "everyone", "groups in order", "move out", "order", "stop", "two lines"}
)
"""Topics of the table by kind that are about what to change in the program."""
_OF_FEW = frozenset({"group", "alone"})
"""Those about a call that is meant for few ranks."""
_OF_MESSAGES = frozenset({"match", "batch"})
_INSTEAD = frozenset({"asked", "either", "key", "messages", "unset"})
"""What is known of a key of a store, or of two loops that send (advice/facts.py)."""
_ARGUMENTS = (What.DIFFERENT_ARGUMENT, What.DIFFERENT_ORDER)
_OF_TENSORS = frozenset({"same tensor", "what differs"})
"""Those about a call that all make with other tensors, where nothing tells why."""
_REASON_COUNTS = {
    Kind.NEVER_ENTERED,
    Kind.MISSING_PEER,
    Kind.INIT_INCOMPLETE,
    Kind.DIED,
    Kind.COLLECTIVE_STUCK,
}


def advice(kind: Kind, reason: Reason, facts: Facts = NOTHING) -> tuple[str, ...]:
    """Remedies, the most specific first: at most four. Links stand at their ends."""
    told: dict[str, str] = {}
    table = remedies()
    for by in ("cause", "wait", "error", "library"):
        _add(told, table[by], kind, reason, facts)
    special = len(told)
    if kind in _REASON_COUNTS:
        _add(told, table["reason"], kind, reason, facts)
    # The change to make, at its line, says more than what is right for all of a kind.
    needless = _OF_THE_CHANGE if facts.cause is not None else frozenset()
    needless |= _OF_FEW if facts.cause is What.DATA_CONDITION else frozenset()
    needless |= _OF_TENSORS if facts.cause in _ARGUMENTS else frozenset()
    needless |= _OF_MESSAGES if facts.values.keys() & _INSTEAD else frozenset()
    by_kind = [remedy for remedy in table["kind"] if remedy.topic not in needless]
    # Of a lost node, or of a GPU that failed, no rank's code is at fault.
    apart = kind is Kind.NEVER_ENTERED or reason in (Reason.NODE_LOST, Reason.GPU_FAULT)
    if not (apart and len(told) - special >= ENOUGH):
        _add(told, by_kind, kind, reason, facts)
    return tuple(filter(None, told.values()))[:MAX_ITEMS]


def _add(
    told: dict[str, str], table: Iterable[Remedy], kind: Kind, reason: Reason, facts: Facts
) -> None:
    """Add what a table has for a finding; of each topic the first stands."""
    for remedy in table:
        if remedy.topic not in told:
            text = remedy.told(kind, reason, facts)
            if text is not None:
                told |= {remedy.topic: text, **dict.fromkeys(remedy.covers, "")}
