"""Classifies the activity of a rank from its stack and its process alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile

from hangwatch.diagnosis import timing
from hangwatch.diagnosis.facts.blocked import Blocked
from hangwatch.diagnosis.facts.job import seconds
from hangwatch.model.calls import Site
from hangwatch.model.frames import (
    innermost_user_site,
    is_user_frame,
    line_of,
    main_thread,
    program_thread,
    site_of,
    user_frames,
)
from hangwatch.model.kinds import Phase, Reason
from hangwatch.model.snapshot import Child, Frame, RankSnapshot, ThreadStack

_DATA = re.compile(
    r"/torch/utils/data/|/torchdata/|/datasets/(?:iterable_dataset|arrow_dataset|packaged_modules/)"
    r"|/webdataset/|/streaming/base/|/nvidia/dali/|/petastorm/|/litdata/"
)
_WORKER = re.compile(r"/torch/utils/data/_utils/(?:worker|fetch)\.py$")
_IDLE_WORKER = re.compile(r"/multiprocessing/(?:queues|connection|synchronize)\.py$")
_CHECKPOINT = re.compile(
    r"/torch/serialization\.py$|/torch/distributed/checkpoint/|/safetensors/|/shutil\.py$"
    r"|/numpy/lib/(?:_?npyio|format)[^/]*\.py$|/fsspec/|/h5py/|/orbax/|/torchsnapshot/"
    r"|/zarr/|/boto3/|/s3transfer/|/botocore/"
)
_CHECKPOINT_LINE = re.compile(r"\bfsync\(|\bsave_file\(|\btorch\.save\(|\bnp\.save|\.copytree\(")
_STORE = re.compile(r"/torch/distributed/(?:rendezvous|elastic/utils/store)\.py$")
_STORE_CALL = {"_store_based_barrier", "store_based_barrier"}
_STORE_LINE = re.compile(r"store\w*\.(?:wait|get|multi_get|compare_set|barrier)\(", re.IGNORECASE)
_DEBUGGER = re.compile(r"/(?:pdb|bdb)\.py$|/(?:debugpy|pydevd|ipdb|pudb|_pydevd_bundle)/")
_IN_C10D = re.compile(r"/torch/distributed/(?!checkpoint/|elastic/|launcher/|run\.py|rpc/)")
_OPS = re.compile(r"/torch/_(?:ops|library/)[^/]*\.py$|/torch/utils/_contextlib\.py$")
"""How a call of an operator looks, whatever it does."""
_AUTOGRAD = re.compile(r"/torch/autograd/(?:graph|__init__)\.py$")
_MAY_WAIT = re.compile(
    r"/torch/autograd/(?:graph|function|__init__)\.py$|/torch/_tensor\.py$|/torch/_ops\.py$"
    r"|/torch/nn/parallel/distributed\.py$|/torch/_(?:functorch|inductor|dynamo)/"
    r"|/torchinductor_[^/]+/|/torch/(?:cuda|accelerator)/|/torch/nn/modules/_functions\.py$"
    r"|/torch/_library/|/torch/utils/_device\.py$|/torch/fx/"
)
_SYNC_LINE = re.compile(r"\.(?:item|cpu|tolist|numpy|wait|synchronize|wait_tensor)\(")
_WAIT_LINE = re.compile(r"\.(?:wait(?:_tensor)?|is_completed)\(")
_FROZEN_WCHAN = ("do_freezer_trap", "__refrigerator", "do_signal_stop")


# --- Compilers ------------------------------------------------------------------------


class Compiler(Enum):
    """The compilers, by the names that people use."""

    TORCH = "torch.compile"
    EXTENSION = "C++ extension"
    TRITON = "Triton"
    NUMBA = "Numba"


_FRAMES = (
    (Compiler.TORCH, re.compile(r"/torch/_dynamo/convert_frame\.py:(?!<module>)")),
    (Compiler.TORCH, re.compile(r"/torch/_inductor/compile_fx\.py:(?:.*\.)?\w*compile\w*$")),
    (
        Compiler.TORCH,
        re.compile(
            r"/torch/_inductor/runtime/triton_heuristics\.py:"
            r".*(?:precompile|autotune_to_one_config|benchmark_all_configs|coordinate_descent)"
        ),
    ),
    (Compiler.EXTENSION, re.compile(r"/torch/utils/cpp_extension\.py:(?!<module>)")),
    (
        Compiler.TRITON,
        re.compile(
            r"/(?:site|dist)-packages/triton/(?:compiler/|backends/\w+/compiler\.py|runtime/build)"
        ),
    ),
    (
        Compiler.TRITON,
        re.compile(r"/(?:site|dist)-packages/triton/(?:runtime/autotuner|testing)\.py:.*bench"),
    ),
    (Compiler.NUMBA, re.compile(r"/numba/core/compiler\w*\.py:(?!<module>)")),
)
"""File and function of frames that exist only while something is compiled; what runs the
compiled code afterwards (eval_frame.py, CachingAutotuner.run, JITFunction.run) is not here.
The first match is the compiler that the program called: torch.compile calls Triton."""
_IMPORTS = re.compile(r"/torch/utils/cpp_extension\.py:_import_module_from_library$")
"""Runs the code of an extension when it is imported: it is built."""
_LOCK_FILE = re.compile(r"/torch/utils/file_baton\.py$")
"""Waits for a file to disappear: extensions, up to torch 2.14."""
_LOCK = re.compile(r"/torch/utils/_filelock\.py$|/filelock/_\w+\.py$")
"""Waits for a lock of the kernel: extensions of later versions, and torch.compile."""
_AUTOGRAD = re.compile(r"/torch/autograd/(?:graph|__init__)\.py$")
_NAME = re.compile(r"-DTORCH_EXTENSION_NAME=(\w+)")
_MIN_PROCESSORS = 0.05
"""Other threads of a rank (the sampler, a progress bar, a logger) take less."""


@dataclass(frozen=True, slots=True)
class Compiling:
    """A compilation that a rank is in."""

    by: Compiler
    extension: str = ""
    """Name of the extension, empty where that is not known."""
    locked: bool = False
    """It waits for a lock: another process compiles the same code, or left the lock file behind."""
    held: bool = False
    """A process that still runs holds that lock."""
    at_work: bool = False
    """The rank, or a process that it started, used the CPU when it was sampled."""


def compiling(rank: RankSnapshot) -> Compiling | None:
    """The compilation that a rank is in, None where it is in none or has no stack."""
    known = ((thread, _compiler(thread.frames)) for thread in _threads(rank))
    thread, by = next((found for found in known if found[1] is not None), (None, None))
    if thread is None or by is None:
        return None
    names = (found[1] for child in rank.children if (found := _NAME.search(child.command)))
    held = any(_LOCK.search(frame.file) for frame in thread.frames)
    locked = held or any(_LOCK_FILE.search(frame.file) for frame in thread.frames)
    at_work = (rank.processors or 0.0) >= _MIN_PROCESSORS
    return Compiling(by, next(names, ""), locked, held, at_work and not locked)


def _threads(rank: RankSnapshot) -> Iterator[ThreadStack]:
    """The threads that compile for the program, if there are any.

    The program's own thread and, while it is in backward, the threads of the autograd engine, which
    C++ started: there is one for each device, which compiles the code that backward needs.
    """
    thread = program_thread(rank)
    if thread is None or not thread.frames:
        return
    yield thread
    if _AUTOGRAD.search(thread.frames[0].file):
        known = (other for other in rank.threads or () if other.frames)
        yield from (t for t in known if t.frames[-1].file.endswith("/torch/autograd/function.py"))


def _compiler(frames: Sequence[Frame]) -> Compiler | None:
    names = [f"{frame.file}:{frame.function}" for frame in frames]
    if any(map(_IMPORTS.search, names)):
        return None
    return next((by for by, pattern in _FRAMES if any(map(pattern.search, names))), None)


# --- Activities -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of a rank.

    ``site`` is its innermost user frame, or that of the data worker it waits for.
    """

    reason: Reason
    site: Site | None = None
    worker: int = 0
    """Pid of the data worker that explains it, 0 if none does."""
    worker_site: Site | None = None
    handling: str = ""
    interrupted: bool = False
    """It was terminated externally; ``site`` is its line at that time."""
    sure: bool = True
    """False where it is only concluded from the calls of others."""
    fault: str = ""
    """The fault of its GPU, where that explains it."""
    running: bool = False
    """Its thread was on a CPU when it was sampled."""
    blocked: Blocked | None = None
    """The wait of its own line, where that was asked."""
    compiling: Compiling | None = None


_NO_STACK = ThreadStack("", 0, active=True, owns_gil=True, frames=())


def waits_in_collective(rank: RankSnapshot, sources: Mapping[str, str]) -> bool | None:
    """Return True if a rank that has unfinished work waits for it; None without a stack.

    Only frames inside the innermost user frame count: backward, the wait of
    a functional collective, a compiled graph, a synchronisation of the device.
    """
    thread = program_thread(rank)
    if thread is None or not thread.frames:
        return None
    if compiling(rank) is not None:
        return False
    for frame in thread.frames:
        if is_user_frame(frame):
            text = line_of(sources, frame.file, frame.line) or ""
            return frame is thread.frames[0] and bool(_SYNC_LINE.search(text))
        if _IN_C10D.search(frame.file) or _MAY_WAIT.search(frame.file):
            return True
    return False


def may_wait(rank: RankSnapshot, sources: Mapping[str, str]) -> bool:
    """Return True if a rank that seems busy may be waiting for its unfinished work after all.

    ``work.wait()`` has no frame of its own: where the line is not known it could be one.
    """
    thread = program_thread(rank)
    if rank.pending_age_s is None or thread is None or not thread.frames:
        return False
    inner = thread.frames[0]
    unknown = is_user_frame(inner) and line_of(sources, inner.file, inner.line) is None
    return unknown or waits_in_collective(rank, sources) is True


def activity(rank: RankSnapshot, sources: Mapping[str, str]) -> Activity:
    """Classify a living rank that waits in no collective, the surest sign first."""
    thread = program_thread(rank)
    frames: Sequence[Frame] = thread.frames if thread else ()
    site = innermost_user_site(frames, sources) or (rank.in_call_site if rank.in_call else None)
    stopped = _stopped(rank, frames)
    if stopped is not None:
        return Activity(stopped, site)
    compiles = compiling(rank)
    if compiles is not None:
        return Activity(Reason.COMPILING, site, compiling=compiles)
    return _waiting_outside(rank, frames, site, sources) or _busy(rank, site, sources)


def _waiting_outside(
    rank: RankSnapshot, frames: Sequence[Frame], site: Site | None, sources: Mapping[str, str]
) -> Activity | None:
    """It waits for data, a file or the store: its calls say more than the holder of the GIL."""
    reason = reason_by_frames(frames, site)
    if reason is Reason.DATA_LOADING:
        worker, worker_site = _stuck_worker(rank.children, sources)
        return Activity(reason, worker_site or site, worker, worker_site)
    return Activity(reason, site) if reason is not None else None


def reason_by_frames(frames: Sequence[Frame], site: Site | None) -> Reason | None:
    """What a stack that is at a site waits for: data, a file, or a key of the store."""
    text = (site.source if site else None) or ""
    innermost = bool(frames) and is_user_frame(frames[0])
    if _any(_DATA, frames):
        return Reason.DATA_LOADING
    if _any(_CHECKPOINT, frames) or (innermost and _CHECKPOINT_LINE.search(text)):
        return Reason.CHECKPOINT_IO
    in_store = any(_STORE.search(f.file) or f.function in _STORE_CALL for f in frames[:6])
    return Reason.STORE_WAIT if in_store or (innermost and _STORE_LINE.search(text)) else None


def waits_in_c10d(frames: Sequence[Frame], sources: Mapping[str, str]) -> bool:
    """True for a stack that waits in torch.distributed, or at a line such as ``work.wait()``."""
    inner = next((frame for frame in frames if not _OPS.search(frame.file)), None)
    if inner is None or not is_user_frame(inner):
        return inner is not None and bool(_IN_C10D.search(inner.file))
    return bool(_WAIT_LINE.search(line_of(sources, inner.file, inner.line) or ""))


def in_backward(frames: Iterable[Frame]) -> bool:
    """True for a stack that is in autograd, and in no function of the user's that this calls."""
    inside = takewhile(lambda frame: not is_user_frame(frame), frames)
    return any(_AUTOGRAD.search(frame.file) for frame in inside)


def inside_worker(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames that a data worker has called; none of another process."""
    depth = next((i for i, frame in enumerate(frames) if _WORKER.search(frame.file)), 0)
    return frames[:depth]


def _busy(rank: RankSnapshot, site: Site | None, sources: Mapping[str, str]) -> Activity:
    holder = _gil_holder(rank)
    if holder is not None:
        return Activity(Reason.GIL_HELD, innermost_user_site(holder.frames, sources) or site)
    if rank.handling:
        return Activity(Reason.EXCEPTION_HANDLING, site, handling=rank.handling)
    thread = program_thread(rank)
    if thread is not None and thread.frames:
        return Activity(Reason.USER_CODE, site, running=thread.active)
    joining = rank.phase is Phase.INIT or bool(rank.in_call)
    return Activity(Reason.STORE_WAIT if joining else Reason.UNKNOWN, site)


def _stopped(rank: RankSnapshot, frames: Sequence[Frame]) -> Reason | None:
    state = rank.process.state[:1]
    if _any(_DEBUGGER, frames) or (state in ("T", "t") and rank.process.tracer_pid):
        return Reason.DEBUGGER
    if state in ("T", "t") or rank.process.wchan in _FROZEN_WCHAN:
        return Reason.STOPPED
    return None


def _gil_holder(rank: RankSnapshot) -> ThreadStack | None:
    """The thread that keeps the GIL from everyone else, if one does."""
    if seconds(rank.gil_age_s) < timing.GIL_STALE_S:
        return None
    owner = next((thread for thread in rank.threads or () if thread.owns_gil), None)
    beats = rank.heartbeat_age_s is not None and seconds(rank.heartbeat_age_s) < timing.GIL_STALE_S
    if owner is None and beats:
        # Its native heart beats, its interpreter does not: some thread has the GIL.
        return main_thread(rank.threads, rank.pid) or _NO_STACK
    return owner


def _stuck_worker(children: Sequence[Child], sources: Mapping[str, str]) -> tuple[int, Site | None]:
    """The data worker that is busy or stopped; idle ones wait for an index."""
    busy: tuple[int, Site | None] = (0, None)
    for child in children:
        thread = main_thread(child.threads, child.pid)
        frames = thread.frames if thread else ()
        inside = inside_worker(frames)
        if user_frames(inside):
            return child.pid, innermost_user_site(inside, sources)
        if inside and not any(_IDLE_WORKER.search(f.file) for f in inside):
            busy = child.pid, site_of(inside[0], sources)
        elif child.process.state[:1] in ("T", "t") and "python" in child.command:
            busy = busy if busy[0] else (child.pid, None)
    return busy


def _any(pattern: re.Pattern[str], frames: Sequence[Frame]) -> bool:
    return any(pattern.search(frame.file) for frame in frames)
