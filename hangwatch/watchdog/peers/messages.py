"""What watchdogs tell each other through the store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hangwatch.model.calls import Site
from hangwatch.model.snapshot import RankSnapshot
from hangwatch.model.verdict import Verdict

MAX_MESSAGE_BYTES = 1 << 20
MAX_NODE_BYTES = 4 << 10
MAX_NAME = 256
"""Characters of a node's name, its host or its address."""
MAX_INCIDENT_BYTES = 4 << 10
MAX_VERDICTS = 16
MAX_HEADLINE = 4000
"""Characters of what another node's verdict has the terminal show."""
MAX_SHOWN = 256
"""Culprits and candidates that are published by number."""

Runs = tuple[tuple[int, int, int], ...]
"""(first, how many, step) of ranks that lie equally far apart."""


@dataclass(frozen=True, slots=True)
class Node:
    """A watchdog that has joined."""

    node: str
    host: str
    ranks: tuple[int, ...]
    address: str = ""
    """Its own as the store sees it."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A request for evidence. ``nonce`` makes each claim's text unlike any other's."""

    owner: str
    nonce: str
    full: bool
    """With stacks and recorders; else what the pages and /proc say."""


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """A ThreadStack whose frames travel as the blob ``frames``."""

    name: str
    tid: int
    active: bool
    owns_gil: bool
    frames: str


@dataclass(frozen=True, slots=True)
class Group:
    """A GroupKey as it is sent."""

    runs: Runs
    desc: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one node knows, without its ranks."""

    node: str
    groups: tuple[Group, ...] = ()
    sites: tuple[Site, ...] = ()
    threads: dict[str, tuple[ThreadRef, ...]] = field(default_factory=dict)
    """``RANK`` or ``RANK/PID`` for a child, to its threads."""
    sources: dict[str, str] = field(default_factory=dict)
    """File to the blob that holds its text."""
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """What the owner of an incident has concluded; no verdicts if nothing is wrong."""

    node: str
    verdicts: tuple[Verdict, ...]
    report: str = ""


@dataclass(frozen=True, slots=True)
class Local:
    """A node's evidence before packing and after unpacking."""

    ranks: tuple[RankSnapshot, ...]
    sources: dict[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()


def slim(published: Published) -> Published:
    """What others print of a conclusion: not who waits where, of ten thousand ranks."""
    verdicts = tuple(
        replace(
            verdict,
            culprits=verdict.culprits[:MAX_SHOWN],
            victims=verdict.victims[:MAX_SHOWN],
            group=None,
            waits=(),
        )
        for verdict in published.verdicts
    )
    return replace(published, verdicts=verdicts)
