"""The native module (native/module.cpp). One process writes at most one page."""

from collections.abc import Callable, Sequence
from typing import Any

PAGE_VERSION: int
PAGE_BYTES: int

# --- Reading: any process, any bytes ------------------------------------------

def read_page(data: bytes | bytearray | memoryview | Any, events: bool = True) -> dict[str, Any]:
    """Decode a page from an object with the buffer protocol (an mmap, bytes).

    Returns plain values only, in the schema that hangwatch.evidence.pages.reader documents.
    Raises ValueError (never anything else, never crashes) for bytes that are
    no page. With events=False the ring is not decoded.
    """

def ring_at(path: str) -> None:
    """End the wait of the rank whose page this is. Raises OSError; EINVAL for no page."""

# --- Writing: the rank itself --------------------------------------------------

def open_page(path: str, identity: dict[str, Any]) -> None:
    """Create the page (O_EXCL, 0600) and map it. identity: types.Identity's fields.

    Raises OSError (ENOSPC where the file system is full: space is reserved
    before it is mapped, so that a full /dev/shm never becomes a SIGBUS),
    RuntimeError if this process has one already.
    """

def close_page() -> None:
    """Forget and unmap the page; the file stays. For tests, which open many in one process."""

def start_heartbeat(interval_ms: int, with_moments: bool = False, /) -> None:
    """Beat from a thread that never takes the GIL. Once; idempotent.

    with_moments: it also notes some ten times a second how far the rank has come.
    """

def stop_heartbeat() -> None: ...
def wait_for_request(seen: int, seconds: float) -> int:
    """Wait, without the GIL, until the count of requests is not seen; returns the count.

    Requests are counted by ring() of this process and by ring_at() of the watchdog.
    """

def watch_collector() -> None:
    """Have gc.enable(), gc.disable() and gc.isenabled() answer as the program asked for. Once.

    While the collector is held, that is what they change, and what counts when it is let go.
    """

def hold_collector() -> None:
    """Have no garbage collected until let_collect(). Makes no object that is collected."""

def let_collect() -> None:
    """End a hold, if there is one: the collector is as the program wants it."""

def ring() -> None:
    """End the wait of a thread of this process."""

def use_dumps(nccl: bool, general: bool) -> bool:
    """Have requests for these recorders of c10d answered without the GIL from now on.

    Returns False, and leaves them to the sampler, where not all of them can be had so.
    """

def add_dump(backend: str) -> None:
    """Ask for the general recorder of this backend too, besides gloo's (torch 2.15)."""

def answer_request() -> bool:
    """Have the watchdog's request for c10d's recorder answered by a thread without the GIL.

    False unless use_dumps() has found all that there is: then it is the caller's.
    """

def set_identity(rank: int, world_size: int, store_host: str, store_port: int) -> None: ...
def set_phase(phase: str) -> None: ...
def set_in_call(name: str, file: str, line: int, function: str) -> None:
    """Enter a blocking set-up call; the name is "" when it has returned."""

def set_mark(
    index: int, kind: str, text: str, count: int, file: str, line: int, function: str
) -> None:
    """Write a mark (types/page.py: PageMark), of which a page has room for MARKS."""

def add_new_group(number: int, ranks: Sequence[int], file: str, line: int, function: str) -> None:
    """Record a call of new_group that begins; number and ranks: see PageNewGroup."""

def set_exception(type: str, message: str, file: str, line: int, function: str) -> None:
    """Record the exception that ends the process; message: of model.json_page.packed()."""

def last_thrown() -> tuple[str, str]:
    """Return type and text of the exception of torch's last call that failed; else empty."""

def set_disarmed(reason: str) -> None: ...
def set_torch_lacks(what: str) -> None:
    """Record what the agent misses in this torch, for people."""

def count_swallowed() -> int:
    """Add one and return the total."""

def beat(handling: str, pending: bool, pending_changed: bool) -> None:
    """Beat from the sampler, which needs the GIL for it.

    pending: c10d has unfinished work; pending_changed: it differs from the last
    beat's (restarts pending_since_ns).
    """

def define_group(
    slot: int, name: str, desc: str, ranks: Sequence[int], index: int, backend: str
) -> bool:
    """Fill a slot (0 <= slot < MAX_GROUPS). ranks: global, in group order.

    backend decides how c10d's numbers are read: "gloo", "nccl", or a
    configuration such as "cpu:gloo,cuda:nccl" (dist.get_backend_config).
    Returns False where there is no memory for the slot, or no page.
    """

def set_groups_left_out(groups: int) -> None:
    """Record the number of groups of this process that have no slot."""

MAX_GROUPS: int

def sample_number(slot: int, group: Any, completed: int = -1) -> int:
    """Read c10d's own number of the group and take it into the page as a sequence number.

    It allows for the point-to-point calls and the monitored_barrier that c10d's number
    counts, and leaves the page alone while one of them is under way. completed:
    ``last_completed`` of the group's pg_status, in c10d's numbers, or -1. What the page
    shows only grows. Returns the last sequence number that was taken, or -1 where it
    is not known now (or ever, for a backend without such a number).
    """

def retire_group(slot: int) -> None:
    """Mark the group as destroyed: alive becomes False, its address is forgotten."""

# --- Wrapping -------------------------------------------------------------------

def wrap_methods(
    process_group: type,
    work: type,
    resolve: Callable[[Any], int],
    is_foreign: Callable[[BaseException], bool] | None = None,
) -> list[str]:
    """Replace the collectives of the class and Work.wait by recording wrappers.

    resolve(group) is called once for each group not seen before and returns
    its slot, or -1 to leave it unrecorded, or -2 to be asked again at the next call.
    It keeps its own errors to itself: what it raises is meant for the program (a signal
    handler has raised it), which gets it instead of the call's result. is_foreign says of an
    Exception that comes up elsewhere in us whether it is meant for the program, too. Returns
    the names that were wrapped; names that this torch lacks are left out. Idempotent.
    """

def unwrap_methods() -> None:
    """Put the originals back. For tests, which wrap other classes each; a job uses disarm()."""

def disarm() -> None:
    """Have the wrappers only call the originals from now on."""

def use_streams(current_stream: Callable[[int], int], library: str = "libcuda.so.1") -> None:
    """Write beacons into the streams of CUDA devices from now on (native/beacon.hpp).

    current_stream: ``torch._C._cuda_getCurrentRawStream``, from a device's number to the
    handle of the stream that is current in the calling thread. The library is that
    of the driver, looked for at the first collective on a device and never loaded;
    no context is made. Called for each page.
    """

def examine_beacons(library: str = "libcuda.so.1") -> tuple[int, str]:
    """Return (number of devices, why beacons could not be written on this machine or "").

    Loads the library; makes no context.
    """

def set_prefixes(internal: Sequence[str], program: Sequence[str]) -> None:
    """Name the directories whose files are not the user's own code.

    internal: torch, the standard library, site-packages, hangwatch; each with its trailing
    slash. program: what is the user's own all the same, of those.

    Frozen and generated code (``<frozen ...>``, torch.fx's
    ``<eval_with_key>``, what inductor writes) is internal too.
    """

def record_begin(
    slot: int,
    op: str,
    wire: str,
    seq: int,
    p2p: bool,
    dtype: str,
    shape: Sequence[int],
    root: int,
    peer: int,
    tag: int,
    is_async: bool,
) -> int:
    """Record a call from Python (subclassed backends); returns the event index.

    -1 where nothing is recorded (no page, disarmed, unknown slot). Blocking
    from now until record_end; the call site is that of the calling frame.
    """

def record_end(index: int, failed: bool) -> None:
    """Record that the call has returned or raised. index: of record_begin, -1 does nothing."""
