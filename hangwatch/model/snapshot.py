"""The input of diagnose(): ranks at one moment, and the thresholds."""

from __future__ import annotations

from dataclasses import dataclass, field

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import ExceptionRecord


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a Python stack (native frames have no line: 0).

    program: it is installed, and of the program that was started.
    """

    file: str
    line: int
    function: str
    program: bool = False


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread, innermost frame first."""

    name: str
    tid: int
    active: bool
    owns_gil: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of a process by /proc. ``state`` is the letter of proc(5)."""

    alive: bool
    state: str = ""
    wchan: str = ""
    tracer_pid: int = 0
    exit_code: int | None = None
    """Exit status if it is known, else None."""
    signal: int | None = None
    """Signal that ended it if it is known, else None."""
    oom_killed: bool = False
    gone_age_s: float | None = None
    """Seconds since it was seen to end."""
    terminated_by_launcher: bool = False
    """It ended by SIGTERM or SIGKILL after another rank had already ended."""
    replaced: bool = False
    """It has ended, and a process has been started since that may be in its place."""


@dataclass(frozen=True, slots=True)
class Child:
    """A child process of a rank, such as a worker of its DataLoader."""

    pid: int
    command: str
    process: ProcessState
    threads: tuple[ThreadStack, ...] = ()


@dataclass(frozen=True, slots=True)
class OpRecord:
    """A call of a rank as the diagnosis sees it (page and flight merged).

    Fields as in PageEvent, with ages instead of times. ``source`` is ``page``
    for calls that Python issued, ``flight`` for calls known from c10d alone, which C++ issued,
    and ``older`` for calls known from it that the page may have lost since.
    """

    group: GroupKey
    op: str
    wire: str
    seq: int
    p2p: bool
    state: OpState
    dtype: str = ""
    shape: tuple[int, ...] = ()
    root: int = -1
    peer: int = -1
    tag: int = 0
    is_async: bool = False
    site: Site | None = None
    issued_age_s: float = 0.0
    blocked_age_s: float | None = None
    source: str = "page"
    thread: int = 0
    """Native id of the thread that made it, the pid for the main thread; 0 if unknown."""
    device: bool = False
    """A device runs it, in the order in which the rank issued it: while it is unfinished,
    the device may not have come to it yet."""
    begun: bool | None = None
    """True if the device has come to it; None where that is not known."""
    sends: tuple[int, ...] = ()
    """Of an all_to_all: size that goes to each member (rows; elements if known from ``flight``)."""
    receives: tuple[int, ...] = ()
    """Size that it takes from each."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Progress of a rank in a group; ``enqueued`` is its last place.

    ``started``: the last place that its device has come to, -1 where unknown.
    ``by_python``: number of its collectives that Python issued, -1 where unknown.
    ``in_order``: its calls complete in their order, so that all up to ``completed`` have.
    ``made_age_s``, ``ended_age_s``: since the rank made and destroyed it, None where
    unknown, or not yet. ``changed_age_s``: since a call in it was last seen to be issued,
    which is half a second late where C++ has.
    """

    key: GroupKey
    name: str
    enqueued: int
    completed: int
    p2p: int = 0
    alive: bool = True
    started: int = -1
    by_python: int = -1
    in_order: bool = False
    made_age_s: float | None = None
    ended_age_s: float | None = None
    changed_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A call of new_group. Fields as in PageNewGroup, with its age instead of its time.

    group: only its members, as a key.
    """

    index: int
    number: int
    group: GroupKey
    site: Site | None
    age_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Fields as in PageMark, with its age instead of its time."""

    kind: str
    text: str
    count: int
    age_s: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """Everything known of one rank at one moment."""

    rank: int
    node: str
    pid: int
    phase: Phase
    process: ProcessState
    phase_age_s: float = 0.0
    groups: tuple[GroupProgress, ...] = ()
    ops: tuple[OpRecord, ...] = ()
    """Oldest first."""
    in_call: str = ""
    in_call_age_s: float = 0.0
    in_call_site: Site | None = None
    new_groups: tuple[NewGroup, ...] = ()
    """Its last calls of new_group, oldest first."""
    marks: tuple[Mark, ...] = ()
    exception: ExceptionRecord | None = None
    exception_age_s: float | None = None
    abort: ExceptionRecord | None = None
    """The exception of C++ for which std::terminate aborts the process."""
    abort_age_s: float | None = None
    handling: str = ""
    gil_age_s: float | None = None
    """Age of the last beat that needed the GIL."""
    heartbeat_age_s: float | None = None
    """Age of the last beat that did not."""
    pending_age_s: float | None = None
    born_age_s: float | None = None
    """Age of its page, which is made when it imports torch.distributed."""
    threads: tuple[ThreadStack, ...] | None = None
    """None where they were not asked for, none where no stack could be taken."""
    main_trains: bool = False
    """Another rank shows that this job trains in its main threads (frames.know_trainers)."""
    children: tuple[Child, ...] = ()
    processors: float | None = None
    """Number that it and the processes below it kept busy while its stack was taken."""
    flight: bool = False
    """True if its Flight Recorder is merged into ``ops``."""
    recorder: str = "native"
    program: str = ""
    """As in Identity (model/page.py)."""
    gpu: GpuState | None = None
    """The GPU that it uses most, None where none is known."""
    missing_evidence: tuple[str, ...] = ()
    """Evidence that could not be had of this rank, and why, for people."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The job that diagnose() judges. Unknown ranks are absent."""

    world_size: int
    ranks: tuple[RankSnapshot, ...]
    restart: int = 0
    ended: bool = False
    """The command has ended; nothing can progress any more."""
    exit_code: int | None = None
    lost_nodes: tuple[str, ...] = ()
    """Hosts that cannot be reached any more; their ranks are there, without evidence."""
    cut_off: bool = False
    """No other host can be reached: the host from which the job is seen may be the lost one."""
    unseen: tuple[str, ...] = ()
    """Facts that could not be seen of the job as a whole, and why, for people."""
    sources: dict[str, str] = field(default_factory=dict)
    """Text of user files named by sites, where unchanged since the start."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Seconds after which a wait is called ``slow``, and a hang."""

    suspect_after_s: float
    hang_after_s: float


@dataclass(frozen=True, slots=True)
class Recording:
    """The input of a verdict when it was announced."""

    announced: str
    """Its state."""
    snapshot: JobSnapshot
    thresholds: Thresholds | None
    """None: the ranks were compared, while nothing was stuck."""
