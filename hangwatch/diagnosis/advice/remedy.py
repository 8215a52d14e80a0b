"""Chooses advice from the table remedies.toml, the most specific first."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Formatter
from typing import Any

from hangwatch.diagnosis.advice.facts import NOTHING, Facts, Use
from hangwatch.model.kinds import Kind, Reason, What

_NAMED = {
    "causes": What,
    "kinds": Kind,
    "reasons": Reason,
    "uses": Use,
    "unless": Use,
    "covers": str,
}


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice for the findings that all that is given here holds for.

    text: may name what advice/facts.py knows, in braces; where it is not known, the remedy is not
    for the finding. topic: of several with one topic only the first is given; covers: other topics
    of which it says enough. link: to the documentation. causes: why it came to it, by the source.
    uses: the program uses one of these; unless: it uses none of these. call, awaited: patterns for
    a function that the culprits, the others, are in. error: a pattern for the exception that ended
    a culprit. apart: only where culprits and others are, or are not, in different calls of the
    program.
    """

    topic: str
    text: str
    link: str = ""
    causes: tuple[What, ...] = ()
    kinds: tuple[Kind, ...] = ()
    reasons: tuple[Reason, ...] = ()
    uses: tuple[Use, ...] = ()
    unless: tuple[Use, ...] = ()
    call: str = ""
    awaited: str = ""
    error: str = ""
    apart: bool | None = None
    covers: tuple[str, ...] = ()

    def told(self, kind: Kind, reason: Reason, facts: Facts) -> str | None:
        """The advice with all that it names, None where it is not for this finding."""
        if (
            (self.causes and facts.cause not in self.causes)
            or (self.kinds and kind not in self.kinds)
            or (self.reasons and reason not in self.reasons)
        ):
            return None
        if (self.uses and facts.uses.isdisjoint(self.uses)) or not facts.uses.isdisjoint(
            self.unless
        ):
            return None
        if self.apart not in (None, facts.apart) or (
            self.error and not re.search(self.error, facts.error)
        ):
            return None
        call, awaited = _first(self.call, facts.calls), _first(self.awaited, facts.awaited)
        if (self.call and not call) or (self.awaited and not awaited):
            return None
        values = {**facts.values}
        values |= {name: text for name, text in (("call", call), ("awaited", awaited)) if text}
        if not self.names <= values.keys():
            return None
        text = self.text.format_map(values)
        if self.text.startswith("{"):
            text = text[:1].upper() + text[1:]
        return f"{text} {self.link}" if self.link else text

    @property
    def names(self) -> frozenset[str]:
        """What the text names."""
        return _names(self.text)


@cache
def remedies() -> Mapping[str, tuple[Remedy, ...]]:
    """The rows by what they are chosen by: cause, wait, error, library, reason and kind."""
    text = resources.files(__package__).joinpath("remedies.toml").read_text("utf-8")
    return {by: tuple(map(_remedy, rows)) for by, rows in tomllib.loads(text).items()}


def _remedy(row: Mapping[str, Any]) -> Remedy:
    named = {
        field: tuple(map(values, row[field])) for field, values in _NAMED.items() if field in row
    }
    return Remedy(**{**row, **named})


@cache
def _names(text: str) -> frozenset[str]:
    """What a text of the table names."""
    return frozenset(name for _, name, _, _ in Formatter().parse(text) if name is not None)


def _first(pattern: str, names: tuple[str, ...]) -> str:
    """The first of some functions that a pattern is for, empty if none is or none is asked."""
    if not pattern:
        return ""
    return next((name for name in names if re.fullmatch(pattern, name)), "")


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
