"""Chooses advice from the table remedies.toml, the most specific first."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from string import Formatter

from hangwatch.diagnosis.advice.facts import NOTHING, Facts, Use
from hangwatch.model import codec
from hangwatch.model.kinds import Kind, Reason, What
from hangwatch.text import capital


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice for the findings for which all conditions given here hold.

    text: may name values of advice/facts.py, in braces; a remedy does not fit a finding for which
    one of them is not known. topic: of several with one topic only the first is given; covers:
    other topics that need no further remedy. link: to the documentation. causes: the cause, by the
    source. uses: the program uses one of these; unless: it uses none of these. call, awaited:
    patterns for a function that the culprits, the others, are in. error: a pattern for the
    exception that ended a culprit. different_calls: culprits and others have to be, or not to be,
    in different calls of the program.
    """

    text: str
    topic: str = ""
    link: str = ""
    causes: tuple[What, ...] = ()
    kinds: tuple[Kind, ...] = ()
    reasons: tuple[Reason, ...] = ()
    uses: tuple[Use, ...] = ()
    unless: tuple[Use, ...] = ()
    call: str = ""
    awaited: str = ""
    error: str = ""
    different_calls: bool | None = None
    covers: tuple[str, ...] = ()

    def filled(self, kind: Kind, reason: Reason, facts: Facts) -> str | None:
        """Return the advice with its values, None where it is not for this finding."""
        fits = (
            (not self.causes or facts.cause in self.causes)
            and (not self.kinds or kind in self.kinds)
            and (not self.reasons or reason in self.reasons)
            and (not self.uses or not facts.uses.isdisjoint(self.uses))
            and facts.uses.isdisjoint(self.unless)
            and self.different_calls in (None, facts.different_calls)
            and (not self.error or re.search(self.error, facts.error))
        )
        if not fits:
            return None
        values = {**facts.values}
        patterns = (("call", self.call, facts.calls), ("awaited", self.awaited, facts.awaited))
        for name, pattern, functions in patterns:
            if pattern:
                matching = (one for one in functions if re.fullmatch(pattern, one))
                if (function := next(matching, None)) is None:
                    return None
                values[name] = function
        if not self.names <= values.keys():
            return None
        text = self.text.format_map(values)
        text = capital(text) if self.text.startswith("{") else text
        return f"{text} {self.link}" if self.link else text

    @property
    def names(self) -> frozenset[str]:
        """The values that the text names."""
        return _names(self.text)


@dataclass(frozen=True, slots=True)
class _Table:
    rows: tuple[Remedy, ...]
    topic: str = ""
    """The topic of rows without one."""


@cache
def remedies() -> Mapping[str, Sequence[Remedy]]:
    """Remedies by the table that holds them: cause, wait, error, library, reason, kind."""
    text = resources.files(__package__).joinpath("remedies.toml").read_text("utf-8")
    tables: dict[str, _Table] = codec.decode(dict[str, _Table], tomllib.loads(text))
    return {
        by: [replace(row, topic=row.topic or table.topic) for row in table.rows]
        for by, table in tables.items()
    }


@cache
def _names(text: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in Formatter().parse(text) if name is not None)


MAX_ITEMS = 4
ENOUGH = 2
"""Special remedies that make general ones needless if a rank is just busy."""
_OF_THE_CHANGE = frozenset(
    {"agree", "batches", "everyone", "groups in order", "move out", "order", "stop", "two lines"}
)
"""Topics of the table by kind that are about a change of the program."""
_OF_FEW = frozenset({"group", "alone"})
"""Topics on a call that is meant for few ranks."""
_OF_MESSAGES = frozenset({"match", "batch"})
_INSTEAD = frozenset({"asked", "either", "key", "messages", "unset"})
"""Values on a key of a store, or on two loops that send (advice/facts.py)."""
_ARGUMENTS = (What.DIFFERENT_ARGUMENT, What.DIFFERENT_ORDER)
_OF_TENSORS = frozenset({"same tensor", "what differs"})
"""Topics on a call that ranks make with different tensors, if the cause is not known."""
_REASON_COUNTS = {
    Kind.NEVER_ENTERED,
    Kind.MISSING_PEER,
    Kind.INIT_INCOMPLETE,
    Kind.DIED,
    Kind.COLLECTIVE_STUCK,
}


def advice(kind: Kind, reason: Reason, facts: Facts = NOTHING) -> tuple[str, ...]:
    """Remedies, the most specific first: at most four. A link is at the end of its text."""
    chosen: dict[str, str] = {}
    table = remedies()

    def choose(by: str, needless: Collection[str] = ()) -> None:
        """Choose the first remedy of each topic."""
        for remedy in table[by]:
            if remedy.topic not in chosen and remedy.topic not in needless:
                text = remedy.filled(kind, reason, facts)
                if text is not None:
                    chosen.update({remedy.topic: text, **dict.fromkeys(remedy.covers, "")})

    for by in ("cause", "wait", "error", "library"):
        choose(by)
    special = len(chosen)
    if kind in _REASON_COUNTS:
        choose("reason")
    # The change to make, at its line, says more than the rule for all of a kind.
    needless = _OF_THE_CHANGE if facts.cause is not None else frozenset()
    needless |= _OF_FEW if facts.cause is What.DATA_CONDITION else frozenset()
    needless |= _OF_TENSORS if facts.cause in _ARGUMENTS else frozenset()
    needless |= _OF_MESSAGES if facts.values.keys() & _INSTEAD else frozenset()
    # For a lost node or a failed GPU, no rank's code is at fault.
    no_code = kind is Kind.NEVER_ENTERED or reason in (Reason.NODE_LOST, Reason.GPU_FAULT)
    if not (no_code and len(chosen) - special >= ENOUGH):
        choose("kind", needless)
    return tuple(filter(None, chosen.values()))[:MAX_ITEMS]
