"""Recognises a rank that compiles: with torch.compile or Triton, or a C++ extension."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hangwatch.model.frames import program_thread
from hangwatch.model.snapshot import Frame, RankSnapshot, ThreadStack


class Compiler(Enum):
    """What compiles. The values are what people call it."""

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
The first that matches is what the program asked for: torch.compile calls Triton."""
_IMPORTS = re.compile(r"/torch/utils/cpp_extension\.py:_import_module_from_library$")
"""Runs what an extension does when it is imported: it is built."""
_LOCK_FILE = re.compile(r"/torch/utils/file_baton\.py$")
"""Waits until a file is gone: for the build of an extension, up to torch 2.14."""
_LOCK = re.compile(r"/torch/utils/_filelock\.py$|/filelock/_\w+\.py$")
"""Waits for a lock that the kernel keeps: from then on, and for what torch.compile makes."""
_AUTOGRAD = re.compile(r"/torch/autograd/(?:graph|__init__)\.py$")
_NAME = re.compile(r"-DTORCH_EXTENSION_NAME=(\w+)")
_MIN_PROCESSORS = 0.05
"""What else runs in a rank (the sampler, a progress bar, a logger) takes less."""


@dataclass(frozen=True, slots=True)
class Compiling:
    """A compilation that a rank is in."""

    by: Compiler
    extension: str = ""
    """Name of the extension, empty where that is not known."""
    locked: bool = False
    """It waits for a lock: another process compiles the same, or has left the lock's file."""
    held: bool = False
    """That lock is held by a process that still runs."""
    at_work: bool = False
    """The rank, or what it has started, used a processor while it was looked at."""


def compiling(rank: RankSnapshot) -> Compiling | None:
    """The compilation that a rank is in, None where it is in none or has no stack."""
    thread, by = next(
        ((thread, by) for thread in _threads(rank) if (by := _compiler(thread.frames))),
        (None, None),
    )
    if thread is None or by is None:
        return None
    names = (found[1] for child in rank.children if (found := _NAME.search(child.command)))
    held = any(_LOCK.search(frame.file) for frame in thread.frames)
    locked = held or any(_LOCK_FILE.search(frame.file) for frame in thread.frames)
    at_work = (rank.processors or 0.0) >= _MIN_PROCESSORS
    return Compiling(by, next(names, ""), locked, held, at_work and not locked)


def _threads(rank: RankSnapshot) -> Iterable[ThreadStack]:
    """The threads that compile for the program, if any does.

    That of the program, and those of the autograd engine while it is in backward: each device
    has one, and what backward needs is compiled there.
    """
    thread = program_thread(rank)
    if thread is None or not thread.frames:
        return ()
    if _AUTOGRAD.search(thread.frames[0].file):
        engine = (other for other in rank.threads or () if _is_of_engine(other))
        return (thread, *engine)
    return (thread,)


def _is_of_engine(thread: ThreadStack) -> bool:
    """Whether a thread was started by C++ to run the backward of autograd functions."""
    return bool(thread.frames) and thread.frames[-1].file.endswith("/torch/autograd/function.py")


def _compiler(frames: Iterable[Frame]) -> Compiler | None:
    names = [f"{frame.file}:{frame.function}" for frame in frames]
    if any(map(_IMPORTS.search, names)):
        return None
    return next((by for by, pattern in _FRAMES if any(map(pattern.search, names))), None)
