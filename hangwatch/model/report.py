"""The evidence that a report is made from."""

from __future__ import annotations

from dataclasses import dataclass, field

from hangwatch.model.calls import Site
from hangwatch.model.kinds import Cost, Reason
from hangwatch.model.profile import Profile, ThreadShares
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
    """The rank concerned, -1 for the job as a whole."""


@dataclass(frozen=True, slots=True)
class Note:
    """A costly mistake, in whole sentences for people."""

    cost: Cost
    ranks: tuple[int, ...]
    what: str
    costs: str
    advice: str
    link: str
    """The page of the official documentation."""
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Why:
    """What a straggler does while the others wait for it, as far as that is known."""

    reason: Reason = Reason.UNKNOWN
    site: Site | None = None
    share: float = 0.0
    """Share of its time at its own line: ``waits_at``, else ``site``."""
    like: int = -1
    """The rank that it was compared with."""
    like_share: float = 0.0
    """Share of that one's time there, or at ``like_site``."""
    waits_at: Site | None = None
    """Its own line, where ``site`` is that of a data worker or of another thread."""
    thread: str = ""
    """Name of that thread; empty for a data worker."""
    missing: str = ""
    """Why no profile could be taken; empty if one was."""
    held: bool = False
    """Only the time is meant for which the others waited."""
    hidden: bool = False
    """Meanwhile the others wait for something else: it costs nothing."""
    like_site: Site | None = None
    """The line at which that one does the same, if this is another one."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """Ranks that the others waited for, again and again, in a part of a run."""

    ranks: tuple[int, ...]
    fraction: float
    """Share of the time that would have been saved if they had taken as long as the others."""
    since_s: float
    """Seconds since the run began."""
    until_s: float
    why: Why = Why()

    @property
    def lost_s(self) -> float:
        """Seconds that they have cost the job."""
        return self.fraction * (self.until_s - self.since_s)


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Those of a run, in their order in time."""

    found: tuple[Straggler, ...] = ()
    measured_s: float = 0.0
    """Time in which it was known which rank waits for which."""
    unknown: str = ""
    """The reason why there may be others, for people; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Which ranks of a node waited at the moments of some time."""

    ranks: tuple[int, ...]
    at_s: tuple[float, ...]
    """Each moment, in seconds since the run began."""
    awake: tuple[frozenset[int], ...]
    """The ranks that did not wait then."""
    held: tuple[bool, ...]
    """All others waited then for the stragglers."""


@dataclass(frozen=True, slots=True)
class StragglerEvidence:
    """A straggler, and what is known of it."""

    run: RunInfo
    straggler: Straggler
    detected_at: str
    """UTC, ISO 8601."""
    world_size: int
    node: str
    pids: dict[int, int]
    """Of the ranks of this node."""
    period_s: float
    """The time after which the calls of Python's lines recur; 0 where it is not known."""
    waits: Waits
    threads: tuple[ThreadShares, ...] = ()
    """What the first of the stragglers was at, beside the rank that it was compared with."""
    profiles: tuple[Profile, ...] = ()
    """Of these two."""
    sources: dict[str, str] = field(default_factory=dict)
    """File to its text, as far as it is at hand and unchanged."""


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """The answer of NCCL's RAS service about the job (evidence/ras.py)."""

    data: bytes
    """The raw answer."""
    is_json: bool
    """Since NCCL 2.28; text for people before."""
    complete: bool
    """False if it did not end in time, or cannot be read."""
    version: str = ""
    """Of NCCL."""
    findings: tuple[str, ...] = ()
    """Problems that it reports, for people."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One incident: the verdicts, and the evidence that they were concluded from."""

    run: RunInfo
    job: JobSnapshot
    verdicts: tuple[Verdict, ...]
    """Most important first; never empty."""
    detected_at: str
    """UTC, ISO 8601: the time of the first verdict."""
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
    """Tracebacks of hangwatch's own faults on this node (safety/faultlog.py)."""
    lost: tuple[str, ...] = ()
    """Failures of hangwatch in this run, and why, for people."""
    notes: tuple[Note, ...] = ()
    """Costly mistakes of this node's ranks that did not cause the incident."""
