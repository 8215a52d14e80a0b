"""The messages between watchdogs, which go through the store of the job."""

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
"""Characters of a text of another node's verdict that the terminal shows."""
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
    """Its own address as the store sees it."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A request for evidence. ``nonce`` makes each claim's text unlike any other's."""

    owner: str
    nonce: str
    full: bool
    """With stacks and recorders; else only the pages and /proc."""


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
    """The evidence of one node, without its ranks."""

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
    """The conclusion of an incident's owner; no verdicts if nothing is wrong."""

    node: str
    verdicts: tuple[Verdict, ...]
    report: str = ""


@dataclass(frozen=True, slots=True)
class Local:
    """A node's evidence before packing and after unpacking."""

    ranks: tuple[RankSnapshot, ...]
    sources: dict[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """The other nodes' evidence. ``owner`` is False if another node has diagnosed."""

    owner: bool
    round: int
    """Number of the incident, 0 if no other node has heard of it."""
    others: tuple[Local, ...] = ()
    silent: tuple[Node, ...] = ()
    """Nodes that joined and did not answer in time."""
    unseen: tuple[str, ...] = ()
    """Evidence that could not be had, for people."""


def slim(published: Published) -> Published:
    """Return the part of a conclusion that others print: without the waits of 10,000 ranks."""
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
