"""One row of the table of advice: what to do, and for which findings it is right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from string import Formatter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangwatch.diagnosis.advice.facts import Facts, Use
    from hangwatch.types.kinds import Kind, Reason, What

VALUES = frozenset(
    {
        "culprits",
        "others",
        "cause",
        "cause_line",
        "leaving",
        "counted",
        "asking",
        "raised",
        "unwinding",
        "dtype",
        "shape",
        "root",
        "splits",
        "tag",
        "group",
        "impatient",
        "waits_in",
        "stuck",
        "mutex",
        "holder",
        "holder_at",
        "crossed_at",
        "dead_thread",
        "dead_at",
        "dead_by",
        "lost_thread",
        "lost_process",
        "other_thread",
        "other_thread_at",
        "child",
        "answer",
        "file_lock",
        "pipe",
        "mount",
        "until",
        "key",
        "unset",
        "untimed",
        "as_one",
        "passed_at",
        "either",
        "last_at",
        "set_key",
        "set_at",
        "input",
        "held",
        "lock",
        "torch_compile",
        "extension",
        "kernels",
        "line",
        "other_line",
        "op",
        "entered",
        "own_group",
        "backward",
        "unordered",
        "fed",
        "repeats",
        "finalizing",
        "alike",
        "abort",
        "abort_on_gpu",
        "late_abort",
        "call",
        "awaited",
    }
)
"""What a text may name."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice for the findings that all that is given here holds for.

    text: may name VALUES in braces; where one is not known, the remedy is not for the
    finding. topic: of several with one topic only the first is given. link: to the
    documentation. causes: why it came to it, by the source. uses: the program uses one of these;
    unless: it uses none of these. call, awaited: patterns for a function that the culprits, the
    others, are in. error: a pattern for the exception that ended a culprit. apart: only where
    culprits and others are, or are not, in different calls of the program.
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
def _names(text: str) -> frozenset[str]:
    """What a text of the table names."""
    return frozenset(name for _, name, _, _ in Formatter().parse(text) if name is not None)


def _first(pattern: str, names: tuple[str, ...]) -> str:
    """The first of some functions that a pattern is for, empty if none is or none is asked."""
    if not pattern:
        return ""
    return next((name for name in names if re.fullmatch(pattern, name)), "")
