"""The table of advice, remedies.toml: what to do, and for which findings it is right."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Formatter
from typing import Any

from hangwatch.diagnosis.advice.facts import Facts, Use
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
