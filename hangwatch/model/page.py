"""The rank page, as its reader returns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase

MAX_WORLD = 1 << 20
"""Most ranks in one job. What claims more is refused: memory would grow with it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a page. ``start_ticks`` is field 22 of /proc/PID/stat (proc(5))."""

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
    program: str = ""
    """The program that was started: a file, or if it is installed its package, a directory with a
    trailing slash. Empty where that is not known."""


@dataclass(frozen=True, slots=True)
class ExceptionRecord:
    """An exception that ended a rank. ``site`` is the innermost user frame.

    thrown: the exception of the last call of torch's that failed, be it this one, one that
        the program has made this one of, or long forgotten; ``TYPE: TEXT``, empty if none failed.
    sent: the name of the signal whose handler has raised it, empty if none has.
    after: exceptions that led to it, the latest first, as far as a traceback shows them;
        ``TYPE: TEXT`` each.
    in_cpp: C++ raised it and did not catch it, so that std::terminate aborted the process. The
        type is empty where std::terminate was called without an exception.
    """

    type: str
    message: str
    site: Site | None = None
    at_ns: int = 0
    thrown: str = ""
    sent: str = ""
    after: tuple[str, ...] = ()
    in_cpp: bool = False

    @property
    def story(self) -> str:
        """Its text, and what led to it: ``TEXT (after TYPE: TEXT; TYPE: TEXT)``."""
        return f"{self.message} (after {'; '.join(self.after)})" if self.after else self.message


@dataclass(frozen=True, slots=True)
class PageGroup:
    """One process group of one rank.

    enqueued: collectives issued so far, by Python and by C++ (c10d's counter
        less the point-to-point calls), sampled about twice a second and at
        each call that Python issues.
    completed: the last of them known to be complete, -1 where unknown.
    reached, passed: the last place up to which the GPU has reported (native/beacon.hpp)
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
    """Time when ``enqueued`` or ``p2p`` was last seen to change."""
    alive: bool = True
    """False once the group was destroyed."""
    made_ns: int = 0
    ended_ns: int = 0
    """Time when it was made, and destroyed (CLOCK_MONOTONIC); 0 where unknown, or not yet."""
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
    """CUDA device whose stream reports when it has come to it (``PageGroup.reached``), else -1."""
    sends: tuple[int, ...] = ()
    """Of all_to_all_single: number of rows that go to each member; empty where unknown."""
    receives: tuple[int, ...] = ()
    """Number of rows that it takes from each."""


@dataclass(frozen=True, slots=True)
class PageNewGroup:
    """A call of new_group, which makes a group of ``ranks``, empty where they are not known.

    number: the name of the group, below which its members meet. It counts these calls on each
        rank; -1 where the group has another name, and only its members make the call.
    index: the place among the calls of the process.
    """

    index: int
    ns: int
    number: int
    ranks: tuple[int, ...] = ()
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class PageMark:
    """An act of a rank at a line, ``count`` times, that is no call of a group.

    kind: see agent/record/marks.py. ns: of the last time.
    """

    kind: str
    text: str
    count: int
    ns: int
    site: Site | None


class PageMoment(NamedTuple):
    """How far the rank had come at one moment (native/moments.hpp)."""

    number: int
    """The same for all ranks of the node."""
    at_ns: int
    """CLOCK_MONOTONIC."""
    thread: int
    """Native id of the thread that issues calls, the main one if it does."""
    call: int
    """Number of the system call that this thread slept in; negative where it slept in none, or
    that is not known."""
    cpu_ns: int
    """CPU time of the thread so far."""
    delay_ns: int
    """Time for which it has waited for a CPU so far."""
    blocked_slot: int
    """Of the group whose call it was blocked in, as far as Python made it, else -1."""
    blocked_peer: int
    """The rank that it sent to or received from there, -1 for a collective."""
    groups: list[tuple[int, int, int]]
    """(slot, calls issued, the last that is complete) of gloo's groups, as c10d counts them."""


@dataclass(frozen=True, slots=True)
class RankPage:
    """The black box of one rank. Times are CLOCK_MONOTONIC in ns, 0 if never."""

    identity: Identity
    recorder: str
    """``native`` or ``python``."""
    recorder_reason: str
    """Reason why it is not the native one; empty if it is."""
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
    """Time since which c10d has had the same unfinished work, 0 if it has none. Of gloo's groups
    that of the one whose work has been unfinished for longest, whatever happens in others."""
    in_call: str
    """Blocking set-up call that the rank is in (``init_process_group``,
    ``new_group``, ``destroy_process_group``), or empty."""
    in_call_ns: int
    in_call_site: Site | None
    exception: ExceptionRecord | None
    swallowed: int
    """Number of errors of our own that the agent kept from the job."""
    disarmed: str
    """Reason why the agent stopped recording, or empty."""
    groups: tuple[PageGroup, ...] = ()
    events: tuple[PageEvent, ...] = ()
    """Oldest first."""
    beacons: str = "the Python recorder writes none"
    """Reason why the GPU does not report its progress; empty if it does."""
    torch_lacks: str = ""
    """Functions that the agent lacks in the rank's torch and libraries, for people, or empty."""
    new_groups: tuple[PageNewGroup, ...] = ()
    """Its last calls of new_group, oldest first."""
    marks: tuple[PageMark, ...] = ()
    groups_left_out: int = 0
    """Number of groups that the process made when the page had no room for more."""
