"""What a fault of the campaign is, and what came of one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEED = 20
"""Of the campaign whose table stands in the docs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, its number in it, and what was drawn for it.

    The same seed draws the same fault, whichever others run.
    """

    kind: str
    number: int
    drawn: dict[str, Any]

    @property
    def name(self) -> str:
        """By which it is run alone."""
        return f"{self.kind}-{self.number:03}"

    def __str__(self) -> str:
        return f"{self.name} {' '.join(f'{key}={value}' for key, value in self.drawn.items())}"


@dataclass(slots=True)
class Outcome:
    """What came of it: nothing harmed and nothing lost, or what."""

    harmed: list[str] = field(default_factory=list)
    """What a user of the job would have to suffer, or be misled by."""
    lost: list[str] = field(default_factory=list)
    """Verdicts that were neither given nor said to be lost."""
    seconds: float = 0.0
    untried: str = ""
    """Why it could not be tried on this machine, or empty."""


class Kind(Protocol):
    """A module of tests/campaign/kinds."""

    NAME: str
    COUNT: int
    SECONDS: int
    """What one of them takes on a machine that does nothing else."""
    FAULT: str
    """One line for the table: what is done."""
    MOMENT: str
    """One line for the table: when."""

    def draw(self, number: int, dice: random.Random) -> dict[str, Any]:
        """The particulars of fault ``number``; plain values that are worth reading."""
        ...

    def inject(self, fault: Fault, where: Path) -> Outcome:
        """Do it to a real job in the directory ``where``, and judge."""
        ...


def faults(kind: Kind, seed: int = SEED) -> list[Fault]:
    """All faults of a kind."""
    return [one(kind, number, seed) for number in range(kind.COUNT)]


def one(kind: Kind, number: int, seed: int = SEED) -> Fault:
    """A single fault, the same as among all."""
    dice = random.Random(f"{seed}/{kind.NAME}/{number}")  # noqa: S311 (no secret)
    return Fault(kind.NAME, number, kind.draw(number, dice))


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Several looks at one fault as one."""
    whole = Outcome()
    for outcome in outcomes:
        whole.harmed += outcome.harmed
        whole.lost += outcome.lost
        whole.untried = whole.untried or outcome.untried
    return whole
