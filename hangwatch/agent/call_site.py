"""Finds the user's own line on a Python stack, and what they called there.

The native module has its own implementation of this (native/callsite.cpp) for
the calls that it wraps; this one serves the Python recorder and the rest of the
agent, by the same rules.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from types import FrameType, TracebackType

_C10D = "/torch/distributed/distributed_c10d.py"
_GENERATED = ("<frozen", "<eval_with_key>")
_INDUCTOR = "/torchinductor_"
_LIBRARIES = ("site-packages", "dist-packages")

Place = tuple[str, int, str]
"""File, line and function."""
NOWHERE: Place = ("", 0, "")


def internal_prefixes() -> list[str]:
    """Directories, with a trailing slash, whose files are not the user's own code.

    torch's, the standard library's, hangwatch's and all that is installed; under
    the names that sys.path has for them, and under their real ones.
    """
    places = [os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(__file__))]
    places += [entry for entry in sys.path if os.path.basename(entry) in _LIBRARIES]
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "__file__", None):
        places.append(os.path.dirname(str(torch.__file__)))
    both = [name for place in places for name in (os.path.abspath(place), os.path.realpath(place))]
    return list(dict.fromkeys(name.rstrip("/") + "/" for name in both))


def is_internal(file: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a code object's file belongs to no user: installed, or generated."""
    return file.startswith((*_GENERATED, *prefixes)) or _INDUCTOR in file


def user_place(frame: FrameType | None, prefixes: tuple[str, ...]) -> Place:
    """The innermost user frame at or above ``frame``."""
    while frame is not None:
        code = frame.f_code
        if not is_internal(code.co_filename, prefixes):
            return code.co_filename, frame.f_lineno or 0, code.co_name
        frame = frame.f_back
    return NOWHERE


def public_name(frame: FrameType | None, prefixes: tuple[str, ...]) -> str:
    """The function of torch.distributed that the user's innermost frame has called.

    It is the outermost public one of distributed_c10d below that frame: object
    collectives call others in turn. Empty where there is none.
    """
    name = ""
    while frame is not None and is_internal(frame.f_code.co_filename, prefixes):
        code = frame.f_code
        if code.co_filename.endswith(_C10D) and code.co_name[0] not in "_<":
            name = code.co_name
        frame = frame.f_back
    return name


def raised_at(trace: TracebackType | None, prefixes: tuple[str, ...]) -> Place:
    """The innermost user frame of a traceback, else the innermost of all."""
    innermost = own = NOWHERE
    while trace is not None:
        code = trace.tb_frame.f_code
        innermost = code.co_filename, trace.tb_lineno or 0, code.co_name
        if not is_internal(code.co_filename, prefixes):
            own = innermost
        trace = trace.tb_next
    return own if own != NOWHERE else innermost
