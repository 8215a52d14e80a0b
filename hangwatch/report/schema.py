"""The types of report.json and run.json, schema ``hangwatch.report/1`` and ``hangwatch.run/1``.

``docs/report.schema.json`` is made from those of report.json, docstrings and all, by
``python tests/integration/report_schema.py``. Ages and durations are in seconds; those of ranks
count back from the moment of the snapshot, and are comparable between ranks. Ranks are global
ranks. Times are UTC, ISO 8601.

A report is written and read as these dictionaries: a stored one may be damaged, or of a later
version, and each part of it that is whole is still shown.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NotRequired, TypedDict

from hangwatch.model.kinds import (
    Certainty,
    Cost,
    GpuHealth,
    Kind,
    OpState,
    Phase,
    Reason,
    State,
    What,
)

SCHEMA: Final = "hangwatch.report/1"
RUN_SCHEMA = "hangwatch.run/1"


class PackageCall(TypedDict):
    """A call that a line of the program makes into an installed package."""

    package: str
    function: str
    inner: str | None
    """The function that runs deeper in that package; null where it is the same."""


class Context(TypedDict):
    """The lines around a site."""

    first: int
    """Number of the first line."""
    lines: list[str]


class Site(TypedDict):
    """A line of code."""

    file: str
    line: int
    function: str
    source: str | None
    """The text of the line; null where the file is not at hand."""
    call: NotRequired[PackageCall]
    """Left out where the line has called nothing of an installed package."""
    context: NotRequired[Context | None]
    """Null where the file is not at hand; left out where it would be too much."""


class Run(TypedDict):
    """The run that the incident belongs to."""

    id: str
    command: list[str]
    world_size: int
    nodes: list[str]
    restart: int
    """Number of times that the launcher had restarted the ranks."""
    started_at: str
    versions: dict[str, str]
    """Of hangwatch, Python, torch, py-spy and the kernel, where known."""


class VerdictGroup(TypedDict):
    """The process group that a verdict is about."""

    name: str
    desc: str
    ranks: list[int]


class Collective(TypedDict):
    """The collective that a verdict is about."""

    op: str
    seq: int
    """Collective sequence number in the group."""
    dtype: str
    shape: list[int]


class CertaintyOf(TypedDict):
    """The certainty of each part of a verdict."""

    hang: Annotated[str, Certainty]
    """That the job hangs."""
    culprits: Annotated[str, Certainty]
    """That these ranks caused it."""


class Cause(TypedDict):
    """The reason in the source for what the culprits did."""

    what: Annotated[str, What]
    certainty: Annotated[str, Certainty]
    site: Site | None
    """The line to change, or that is stuck."""
    why: str
    """One sentence."""
    evidence: list[str]
    """The lines where ranks took different ways, if the source shows them."""
    others: list[Cause]
    """Other possible causes, best first."""


class Verdict(TypedDict):
    """The conclusion: what happened, which ranks caused it, and what to do."""

    state: Annotated[str, State]
    kind: Annotated[str, Kind] | None
    reason: Annotated[str, Reason]
    certainty: Annotated[str, Certainty]
    """The lower certainty of certainty_of."""
    certainty_of: CertaintyOf
    cause: Cause | None
    culprits: list[int]
    """The ranks that caused it."""
    victims: list[int]
    """The ranks that wait for them, or failed after them."""
    group: VerdictGroup | None
    collective: Collective | None
    site: Site | None
    """The line that the culprit is at, or of the call that it entered."""
    victim_site: Site | None
    """The line that the victims wait at."""
    headline: str
    explanation: str
    advice: list[str]
    """Best first."""
    stuck_since: str | None
    detected_at: str
    detected_after_s: float
    """From the moment the job got stuck."""
    stuck_age_s: float
    """Of the rank that has waited longest."""


class Process(TypedDict):
    """The state of a process, or how it ended."""

    alive: bool
    state: str
    """The letter of proc_pid_stat(5); empty where it is not known."""
    wchan: str
    """The function of the kernel that it sleeps in."""
    tracer_pid: int
    exit_code: int | None
    signal: int | None
    oom_killed: bool
    gone_age_s: float | None
    terminated_by_launcher: bool


class BlockedCall(TypedDict):
    """A call that a rank is blocked in."""

    op: str
    group: str | None
    """Label of the group; null for a set-up call."""
    seq: int
    """Collective sequence number in the group; 0 for calls that have none."""
    age_s: float
    site: Site | None


class Thread(TypedDict):
    """A thread of a process."""

    name: str
    tid: int
    active: bool
    owns_gil: bool
    stack: str | None
    """Key in ``stacks``."""


class Child(TypedDict):
    """A process that a rank has started, such as a worker of a data loader."""

    pid: int
    command: str
    process: Process
    threads: list[Thread]


class RankException(TypedDict):
    """The exception that ended a rank, or that it is handling."""

    type: str
    message: str
    site: Site | None


class Gpu(TypedDict):
    """The GPU of a rank, from NVML; null for values that NVML does not give."""

    uuid: str
    parent: str | None
    """UUID of the GPU that a MIG instance is part of."""
    index: int
    name: str
    health: Annotated[str, GpuHealth]
    ranks: list[int]
    assumed: bool
    """True if the rank's GPU is guessed from its local rank."""
    utilization: float | None
    """0 to 1."""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: float | None
    power_w: float | None
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    throttle: list[str] | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    ecc_uncorrected_new: int
    """Since the run began."""
    remapped_rows: dict[str, int] | None
    nvlink_errors: int | None
    xids: dict[str, int]
    """Number of the Xid to its count."""
    unreadable: list[str]


class GroupProgress(TypedDict):
    """The progress of a rank in a group, in collective sequence numbers."""

    id: int
    """Index in ``groups``."""
    name: str
    """The name that torch gives the group on that rank."""
    desc: str
    size: int
    enqueued: int
    started: int
    completed: int
    p2p: int
    """Point-to-point calls."""
    alive: bool


class Call(TypedDict):
    """A recorded call of torch.distributed."""

    op: str
    group: str | None
    group_id: int
    """Index in ``groups``."""
    seq: int
    p2p: bool
    peer: int | None
    root: int | None
    dtype: str
    shape: list[int]
    state: Annotated[str, OpState]
    issued_age_s: float
    blocked_age_s: float | None
    """Time that the rank has been blocked in it; null where it is not."""
    source: str
    """``page``, ``flight`` or ``older``: the recorder that has it."""
    site: int | None
    """Index in ``sites``."""


class Rank(TypedDict):
    """One rank at the moment of the snapshot."""

    rank: int
    node: str
    pid: int
    phase: Annotated[str, Phase]
    process: Process
    stuck_in: BlockedCall | None
    site: Site | None
    """The line of the program's own code that it is at."""
    stack: str | None
    """Of the main thread, or of the thread that trains: key in ``stacks``."""
    threads: list[Thread]
    children: list[Child]
    exception: RankException | None
    gpu: Gpu | None
    recorder: str
    missing_evidence: list[str]
    groups: list[GroupProgress]
    calls: list[Call] | None
    """The last calls, oldest first; null for ranks that are like others."""


class StackFrame(TypedDict):
    """A frame of a stack."""

    file: str
    line: int
    """0 in a function of C or C++."""
    function: str
    source: str | None
    user: bool
    """True if it is of the program's own code."""


class Stack(TypedDict):
    """A stack, and the ranks that have it."""

    frames: list[StackFrame]
    """Innermost first."""
    ranks: list[int]


_For = TypedDict("_For", {"for": list[int]})


class _Missing(BlockedCall, _For):
    for_count: int
    """Number of missing ranks."""


class Wait(_Missing):
    """A rank that waits ``for`` missing ranks, of which the first are listed."""

    rank: int
    towards: int | None
    """The missing rank through which it waits for a culprit."""
    place: int
    """Index in ``places``."""


class WaitPoint(_Missing):
    """One call, of one group, at one line, in which ranks wait ``for`` the same missing ranks.

    ``age_s`` is that of the rank that has waited longest.
    """

    group_id: int | None
    """Index in ``groups``; null for a set-up call."""
    ranks: list[int]
    """The ranks that wait there."""


class Group(TypedDict):
    """A process group."""

    label: str
    desc: str
    index: int
    """Its number among the groups with the same members and description."""
    size: int
    ranks: str
    """In the form ``0, 1, 3-7``."""
    furthest: int | None
    """The highest sequence number that a member has enqueued."""


class Moment(TypedDict):
    """A line of the timeline."""

    at: str
    what: str
    rank: int
    """-1 for the job as a whole."""


class Ras(TypedDict):
    """The answer of NCCL's RAS service about the job."""

    version: str
    complete: bool
    """True if it ended in time and could be read."""
    findings: list[str]


class Nccl(TypedDict):
    """NCCL's own diagnostics."""

    ras: Ras | None


class Note(TypedDict):
    """A costly mistake that does not explain the incident."""

    cost: Annotated[str, Cost]
    ranks: list[int]
    what: str
    costs: str
    advice: str
    link: str
    """The page of the official documentation."""
    site: Site | None


class Report(TypedDict):
    """report.json: one incident, and the evidence that it was concluded from."""

    schema: Literal["hangwatch.report/1"]
    """``hangwatch.report/1``: fields are added to it, and none is taken away."""
    run: Run
    verdict: Verdict
    """The most important one."""
    also: list[Verdict]
    """Verdicts of less importance."""
    ranks: list[Rank]
    stacks: dict[str, Stack]
    waits: list[Wait]
    places: list[WaitPoint]
    """Each place that ranks wait in, once."""
    groups: list[Group]
    sites: list[Site]
    """Of ``calls``; without the lines around them."""
    timeline: list[Moment]
    """Oldest first."""
    environment: dict[str, str]
    """A few variables of the job."""
    nccl: Nccl
    exit_code: int | None
    """Of the command; null while it runs."""
    unseen: list[str]
    """Evidence that could not be had of the job, and why."""
    lost: list[str]
    """Failures of hangwatch in this run, and why."""
    notes: list[Note]


class Straggler(TypedDict):
    """Ranks that the others waited for, again and again, in a part of the run."""

    ranks: list[int]
    fraction: float
    """Share of the time that would have been saved if they had taken as long as the others."""
    since_s: float
    """Seconds since the run began."""
    until_s: float
    reason: Annotated[str, Reason]
    site: Site | None


class StragglerWatch(TypedDict):
    """How far it is known who made the run slow."""

    measured_s: float
    """Time in which it was known which rank waits for which."""
    unknown: str | None
    """The reason why no straggler could be told, for people."""


class RunReport(TypedDict):
    """run.json: how the watch of one node ended."""

    schema: str
    id: str
    node: str
    watch: str
    """The same for a supervisor and its watchdog, which may both write the file."""
    command: list[str]
    started_at: str
    duration_s: float
    exit_code: int
    incidents: list[str]
    """Names of the directories of their reports."""
    lost: list[str]
    notes: list[Note]
    stragglers: list[Straggler]
    """In their order in time."""
    straggler_reports: list[str]
    """Names of the directories of their reports."""
    straggler_watch: StragglerWatch
