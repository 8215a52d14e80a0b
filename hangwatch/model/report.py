"""What a report is made of, beside the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from hangwatch.model.calls import Site
from hangwatch.model.kinds import Cost
from hangwatch.model.snapshot import JobSnapshot
from hangwatch.model.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run that an incident belongs to."""

    run_id: str
    command: tuple[str, ...]
    started_at: str
    """UTC, ISO 8601."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of hangwatch, Python, torch, py-spy and the kernel, where known."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of an incident's timeline."""

    at: str
    """UTC, ISO 8601."""
    what: str
    """One sentence for people."""
    rank: int = -1
    """The rank that it is about, -1 for the job as a whole."""


@dataclass(frozen=True, slots=True)
class Note:
    """What people are told of a costly mistake, in whole sentences."""

    cost: Cost
    ranks: tuple[int, ...]
    what: str
    costs: str
    advice: str
    link: str
    """Where the official documentation tells of it."""
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """What NCCL's RAS service said of the job (hangwatch/nccl)."""

    data: bytes
    """As it came."""
    is_json: bool
    """Since NCCL 2.28; text for people before."""
    complete: bool
    """False where it did not end in time, or cannot be read."""
    version: str = ""
    """Of NCCL."""
    findings: tuple[str, ...] = ()
    """What is wrong in its eyes, for people."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One incident: what was concluded, and all that it was concluded from."""

    run: RunInfo
    job: JobSnapshot
    verdicts: tuple[Verdict, ...]
    """Most important first; never empty."""
    detected_at: str
    """UTC, ISO 8601: when the first of the verdicts was reached."""
    detected_after_s: float
    """Seconds between the moment the job got stuck and ``detected_at``."""
    pages: dict[int, bytes] = field(default_factory=dict)
    """Rank to its raw page; this node's ranks only."""
    flights: dict[int, bytes] = field(default_factory=dict)
    """Rank to its Flight Recorder as the rank wrote it (JSON)."""
    environment: dict[str, str] = field(default_factory=dict)
    """Allow-listed variables of the job."""
    ras: RasAnswer | None = None
    timeline: tuple[Moment, ...] = ()
    """Oldest first."""
    log: bytes = b""
    """Tracebacks of faults of hangwatch itself on this node (faultlog.py)."""
    lost: tuple[str, ...] = ()
    """What hangwatch could not do in this run, and why, for people."""
    notes: tuple[Note, ...] = ()
    """Costly mistakes of this node's ranks that do not explain the incident."""
