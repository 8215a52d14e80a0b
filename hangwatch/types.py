"""Values shared by every part of hangwatch.

Frozen dataclasses and enums; imports nothing of hangwatch, so that it loads in
a training process, in the watchdog and offline alike, with or without the
native module.

Conventions: ranks are global ranks. ``*_ns`` is CLOCK_MONOTONIC of one node and
never leaves that node; ``*_age_s`` is seconds before the snapshot was taken and
may be compared across nodes. A *place* is (group, sequence number): the n-th
collective of a group, counted from 1, point-to-point calls not counted. This is
the ``collective_seq_id`` of PyTorch's Flight Recorder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What the counters show."""

    NEVER_ENTERED = "never_entered"
    """The culprit has not entered the collective that others wait in."""
    FINISHED_EARLY = "finished_early"
    """The culprit left its loop or exited 0 while others wait (uneven inputs)."""
    DIED = "died"
    """The culprit raised, was killed, or was lost with its node."""
    OP_MISMATCH = "op_mismatch"
    """Ranks entered different collectives at one place in the order."""
    SIGNATURE_MISMATCH = "signature_mismatch"
    """Same collective, but shape, dtype or root differ."""
    SUBSET_ENTERED = "subset_entered"
    """A minority entered a collective that the others never will."""
    ORDER_INVERSION = "order_inversion"
    """A cycle: ranks wait for each other in different groups."""
    MISSING_PEER = "missing_peer"
    """A send without its recv, or a recv without its send."""
    INIT_INCOMPLETE = "init_incomplete"
    """Ranks missing from init_process_group, new_group or the rendezvous."""
    COLLECTIVE_STUCK = "collective_stuck"
    """Every member entered the same collective, and it does not complete."""


class Reason(StrEnum):
    """What the culprit is doing, or how it ended."""

    USER_CODE = "user_code"
    DATA_LOADING = "data_loading"
    CHECKPOINT_IO = "checkpoint_io"
    STORE_WAIT = "store_wait"
    GIL_HELD = "gil_held"
    STOPPED = "stopped"
    DEBUGGER = "debugger"
    EXCEPTION_HANDLING = "exception_handling"
    GPU_KERNEL = "gpu_kernel"
    GPU_FAULT = "gpu_fault"
    EXITED = "exited"
    SIGNAL = "signal"
    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_LOST = "node_lost"
    NETWORK = "network"
    UNKNOWN = "unknown"


class State(StrEnum):
    """How the job stands."""

    HANG = "hang"
    """It will not go on, or has not for longer than --hang-after."""
    SLOW = "slow"
    """It waits, and may recover."""
    FAILED = "failed"
    """It ended because of this."""
    DESYNC = "desync"
    """Ranks disagree, but nothing is stuck yet."""
    OK = "ok"
    """Nothing was found."""


class Certainty(StrEnum):
    """How sure the verdict is; ``proved`` means no future event can undo it."""

    PROVED = "proved"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Phase(StrEnum):
    """Where a rank is in its life. Members are in the order of that life."""

    BORN = "born"
    """torch.distributed was imported."""
    INIT = "init"
    """Inside init_process_group."""
    RUNNING = "running"
    FINALIZING = "finalizing"
    """destroy_process_group was called."""
    EXITED = "exited"
    """The interpreter ended in order."""
    RAISED = "raised"
    """The interpreter ended by an uncaught exception."""


class OpState(StrEnum):
    """How far one collective or point-to-point call has come on one rank."""

    ISSUED = "issued"
    """Handed to the backend; nobody is known to wait for it on the host."""
    BLOCKED = "blocked"
    """A thread of the rank is inside the call or inside ``Work.wait`` for it."""
    DONE = "done"
    FAILED = "failed"
    """The call or the wait raised."""


@dataclass(frozen=True, slots=True)
class PackageCall:
    """What a line of the user's code has called of an installed package other than torch.

    ``function`` is the outermost such function on the stack, with its class: what the
    line itself calls, as far as a stack tells. ``inner`` is the innermost public method,
    of whatever package, empty where that is the same or there is none.
    """

    package: str
    function: str
    inner: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """A line of code. ``source`` is the stripped line where it could be read."""

    file: str
    line: int
    function: str
    source: str | None = None
    call: PackageCall | None = field(default=None, compare=False)
    """What the line has called, where a stack shows it."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What a process group is known by on every rank.

    A group's name is a counter of the process and differs between ranks;
    members, description and ``index`` (its place among the groups with the
    same members and description, from 0, over the life of the process) do not, but for
    processes that were started later (diagnosis/facts/namesakes.py).
    """

    ranks: tuple[int, ...]
    desc: str = ""
    index: int = 0


# --- The rank page (DESIGN 4.4), as its reader returns it ---------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """Who owns a page. ``start_ticks`` is field 22 of /proc/PID/stat (proc(5))."""

    pid: int
    start_ticks: int
    rank: int
    world_size: int
    local_rank: int = -1
    local_world_size: int = -1
    restart: int = 0
    host: str = ""
    store_host: str = ""
    store_port: int = 0
    run_id: str = ""
    script: str = ""


@dataclass(frozen=True, slots=True)
class ExceptionRecord:
    """An exception that ended a rank. ``site`` is the innermost user frame.

    ``message`` ends with those that led to it, if there are any, the latest first:
    ``(after TYPE: TEXT; TYPE: TEXT)``.
    """

    type: str
    message: str
    site: Site | None = None
    at_ns: int = 0

    @property
    def is_raised_anew(self) -> bool:
        """Whether others led to it."""
        return " (after " in self.message

    @property
    def last_words(self) -> str:
        """What it says itself."""
        return self.message.partition(" (after ")[0]


@dataclass(frozen=True, slots=True)
class PageGroup:
    """One process group of one rank.

    enqueued: collectives issued so far, by Python and by C++ (c10d's counter
        less the point-to-point calls), sampled about twice a second and at
        each call that Python issues.
    completed: the last of them known to be complete, -1 where unknown.
    reached, passed: the last place up to which the GPU has told (native/beacon.hpp)
        that the caller's stream had come to the collective, and was behind it. Of the
        calls that have beacons (``PageEvent.device``); -1 where unknown.
    entered, left: collectives that Python issued, and that returned.
    p2p: point-to-point calls issued.
    """

    slot: int
    name: str
    key: GroupKey
    backend: str = ""
    enqueued: int = 0
    completed: int = -1
    reached: int = -1
    passed: int = -1
    entered: int = 0
    left: int = 0
    p2p: int = 0
    changed_ns: int = 0
    """When ``enqueued`` or ``p2p`` was last seen to change."""
    alive: bool = True
    """False once the group was destroyed."""
    made_ns: int = 0
    ended_ns: int = 0
    """When it was made, and destroyed (CLOCK_MONOTONIC); 0 where unknown, or not yet."""
    checkpoints: tuple[tuple[int, ...], ...] = ()
    """(place, hash of all that Python issued up to it), for the last few places that are
    a multiple of 32. Equal on ranks that run the same program."""


@dataclass(frozen=True, slots=True)
class PageEvent:
    """One call of a rank in the ring of the last few hundred.

    ``op`` is the function of torch.distributed that the user knows
    (``all_gather_object``), ``wire`` what c10d is asked for (``all_gather``).
    ``seq`` is the place for collectives; for point-to-point calls it counts
    those of the group on this rank. ``peer`` and ``root`` are global ranks, -1
    where there is none (``recv`` from any source).
    """

    index: int
    slot: int
    op: str
    wire: str
    seq: int
    p2p: bool = False
    dtype: str = ""
    shape: tuple[int, ...] = ()
    root: int = -1
    peer: int = -1
    tag: int = 0
    is_async: bool = False
    state: OpState = OpState.ISSUED
    issued_ns: int = 0
    blocked_ns: int = 0
    done_ns: int = 0
    site: Site | None = None
    thread: int = 0
    """Native thread id that issued it."""
    device: int = -1
    """CUDA device whose stream tells when it has come to it (``PageGroup.reached``), else -1."""


@dataclass(frozen=True, slots=True)
class RankPage:
    """The black box of one rank. Times are CLOCK_MONOTONIC in ns, 0 if never."""

    identity: Identity
    recorder: str
    """``native`` or ``python``."""
    recorder_reason: str
    """Why it is not the native one; empty if it is."""
    phase: Phase
    phase_ns: int
    created_ns: int
    heartbeat_ns: int
    """Last beat that needs no GIL (0 for the Python recorder)."""
    gil_ns: int
    """Last beat of the sampler, which needs the GIL."""
    handling: str
    """Type of the exception that the main thread was handling at that beat."""
    pending_since_ns: int
    """Since when c10d has had the same unfinished work, 0 if it has none."""
    in_call: str
    """Blocking set-up call that the rank is in (``init_process_group``,
    ``new_group``, ``destroy_process_group``), or empty."""
    in_call_ns: int
    in_call_site: Site | None
    exception: ExceptionRecord | None
    swallowed: int
    """Errors of our own that the agent kept from the job."""
    disarmed: str
    """Why the agent stopped recording, or empty."""
    groups: tuple[PageGroup, ...] = ()
    events: tuple[PageEvent, ...] = ()
    """Oldest first."""
    beacons: str = "the Python recorder writes none"
    """Why the GPU does not tell how far it has come; empty if it does."""
    torch_lacks: str = ""
    """What the agent misses in the rank's torch, for people; empty if nothing."""
    groups_left_out: int = 0
    """Groups that the process made when there was no room for more in the page."""


# --- Flight Recorder ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One entry of PyTorch's Flight Recorder, ``wire`` without its backend."""

    group_name: str
    group_desc: str
    pg_id: int
    seq: int
    """collective_seq_id, or p2p_seq_id for point-to-point."""
    op_id: int
    wire: str
    p2p: bool
    dtype: str
    shape: tuple[int, ...]
    state: str
    retired: bool
    created_unix_ns: int
    frames: tuple[Site, ...] = ()
    """Innermost first; only in pickled dumps."""
    src: int = -1
    dst: int = -1
    """Ranks within the group, of point-to-point entries that name them (NCCL)."""
    backend: str = ""
    """``nccl``, ``gloo``, ... as its profiling name begins."""
    record: int = -1
    """record_id: how many entries the process had made before."""
    coalescing: int = -1
    """collective_seq_id, also of point-to-point entries."""


@dataclass(frozen=True, slots=True)
class FlightDump:
    """One rank's Flight Recorder."""

    version: str
    entries: tuple[FlightEntry, ...]
    status: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """pg_id to (last enqueued, started, completed), -1 for none. gloo counts in op_id,
    NCCL in the number of the last collective or point-to-point call."""
    configs: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Name of each group that was used to (description, global ranks in the order of the
    group). gloo does not tell."""


# --- GPUs ---------------------------------------------------------------------


class GpuHealth(StrEnum):
    """Whether a GPU can be used, as far as NVML says."""

    OK = "ok"
    LOST = "lost"
    """It has fallen off the bus, or cannot be reached any more (NVML_ERROR_GPU_IS_LOST)."""
    RESET_REQUIRED = "reset_required"
    """It has to be reset before it can be used again (NVML_ERROR_RESET_REQUIRED)."""
    SILENT = "silent"
    """NVML's calls that are about it do not return."""


THROTTLE_REASONS = (
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
"""Bits 1 to 8 of nvmlClocksEventReasons in nvml.h. Bit 0, that a GPU is idle, is none."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the NVIDIA driver reported of a GPU while the run was watched."""

    number: int
    count: int = 1
    age_s: float = 0.0
    """Of the last one."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU, or a MIG device, as NVML showed it last. None is what could not be had."""

    uuid: str
    """Of the MIG device where it is one; ``index-N`` where it has none to be read."""
    index: int
    """NVML's, which goes by PCI bus; of the GPU that a MIG device is a part of."""
    name: str = ""
    parent: str = ""
    """UUID of the GPU that a MIG device is a part of. Clocks, power, temperature and errors
    are the whole GPU's."""
    health: GpuHealth = GpuHealth.OK
    ranks: tuple[int, ...] = ()
    """Those of its node that use it."""
    assumed: bool = False
    """NVML names no process of ``ranks`` (it may count pids otherwise than we see them): it is
    the GPU that LOCAL_RANK and CUDA_VISIBLE_DEVICES name."""
    utilization: float | None = None
    """Part of the time in which a kernel ran, 0 to 1."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    throttle: tuple[str, ...] | None = None
    """Why its clocks are lower than they could be: some of THROTTLE_REASONS."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded, as ``ecc_corrected``."""
    ecc_uncorrected_new: int = 0
    """Since the run was first watched."""
    ecc_uncorrected_age_s: float | None = None
    """How long ago the last of these was seen."""
    remapped_rows: dict[str, int] | None = None
    """``correctable`` and ``uncorrectable`` errors that rows were remapped for; whether a
    remapping is ``pending`` or there was a ``failure`` (0 or 1)."""
    nvlink_errors: int | None = None
    """CRC errors, replays and recoveries of all links since the driver was loaded."""
    xids: tuple[Xid, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Figures that NVML should have given and did not."""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of a node. ``off`` says why nothing is known of them, empty if something is."""

    gpus: tuple[GpuState, ...] = ()
    off: str = ""


# --- What diagnose() sees -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a Python stack (native frames have no line: 0)."""

    file: str
    line: int
    function: str


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
    """What /proc said of a process. ``state`` is the letter of proc(5)."""

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
    """How long ago it was seen to end."""
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
    for calls that Python issued, ``flight`` for those known from c10d alone.
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
    """Whether the device has come to it; None where that is not known."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a rank has come in a group; ``enqueued`` is its last place.

    ``started``: the last place that its device has come to, -1 where unknown.
    ``by_python``: how many of its collectives Python issued, -1 where unknown.
    ``in_order``: its calls complete in their order, so that all up to ``completed`` have.
    ``made_age_s``, ``ended_age_s``: how long ago the rank made and destroyed it, None where
    unknown, or not yet.
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
    exception: ExceptionRecord | None = None
    exception_age_s: float | None = None
    handling: str = ""
    gil_age_s: float | None = None
    """Age of the last beat that needed the GIL."""
    heartbeat_age_s: float | None = None
    """Age of the last beat that did not."""
    pending_age_s: float | None = None
    born_age_s: float | None = None
    """How long ago its page was made, which is as it comes to torch.distributed."""
    threads: tuple[ThreadStack, ...] | None = None
    """None where they were not asked for, none where no stack could be taken."""
    main_trains: bool = False
    """Another rank shows that this job trains in its main threads (frames.know_trainers)."""
    children: tuple[Child, ...] = ()
    flight: bool = False
    """Whether its Flight Recorder is merged into ``ops``."""
    recorder: str = "native"
    gpu: GpuState | None = None
    """The GPU that it uses most, None where none is known."""
    missing_evidence: tuple[str, ...] = ()
    """What could not be had of this rank, and why, for people."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """What diagnose() judges. Ranks that nothing is known of are absent."""

    world_size: int
    ranks: tuple[RankSnapshot, ...]
    restart: int = 0
    ended: bool = False
    """The command has ended; nothing can progress any more."""
    exit_code: int | None = None
    lost_nodes: tuple[str, ...] = ()
    """Hosts that cannot be reached any more; their ranks are there, without evidence."""
    cut_off: bool = False
    """No other host can be reached: that from which the job is seen may be the lost one."""
    unseen: tuple[str, ...] = ()
    """What could not be seen of the job as a whole, and why, for people."""
    sources: dict[str, str] = field(default_factory=dict)
    """Text of user files named by sites, where unchanged since the start."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When waiting is called ``slow``, and when a hang, in seconds."""

    suspect_after_s: float
    hang_after_s: float


# --- The verdict --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits, where, since when, and for whom."""

    rank: int
    group: GroupKey | None
    seq: int
    op: str
    waits_for: tuple[int, ...]
    age_s: float
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """The collective that a verdict is about."""

    op: str
    seq: int
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened, in the terms of DESIGN 4.2. ``kind`` is None for ``ok``."""

    state: State
    kind: Kind | None
    reason: Reason
    certainty: Certainty
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    group: GroupKey | None = None
    group_name: str = ""
    collective: Collective | None = None
    site: Site | None = None
    """Where the culprit is, or what it entered."""
    victim_site: Site | None = None
    """Where the victims wait."""
    headline: str = ""
    explanation: str = ""
    advice: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    stuck_age_s: float = 0.0
    """How long the longest-waiting rank has waited; where nobody is missing, the last to come."""


OK = Verdict(State.OK, None, Reason.UNKNOWN, Certainty.PROVED, headline="Nothing is stuck.")


# --- What a report is made of ---------------------------------------------------


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


class Cost(StrEnum):
    """A mistake that hangs nothing and costs dear all the same."""

    ONE_GPU = "one_gpu"
    """All ranks of a node use one GPU while others lie idle."""
    SAME_ORDER = "same_order"
    """Every epoch goes through the data in the same order."""
    SAME_DATA = "same_data"
    """The replicas of a model are trained on the same data."""
    SYNC_EACH_BATCH = "sync_each_batch"
    """Gradients are averaged at each micro-batch of an accumulation."""
    UNUSED_SEARCH = "unused_search"
    """Unused parameters are looked for where there are none."""


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
