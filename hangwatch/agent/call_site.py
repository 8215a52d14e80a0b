"""Finds the user's own line on a Python stack, and what they called there.

The native module has its own implementation of this (native/callsite.cpp) for
the calls that it wraps; this one serves the Python recorder and the rest of the
agent, by the same rules.
"""

from __future__ import annotations

import os
import sys

from hangwatch.agent.program import LIBRARIES, program_code

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

_C10D = "/torch/distributed/distributed_c10d.py"
_TYPED = ("<stdin>", "<string>", "<ipython-input", "<python-input")
"""Files of code that people type, or hand to Python by -c; other ``<...>`` is generated code."""
_INDUCTOR = "/torchinductor_"

CallSite = tuple[str, int, str]
"""File, line and function."""
NO_SITE: CallSite = ("", 0, "")


class Prefixes:
    """Beginnings of the names of files: directories with a trailing slash, or whole names.

    internal: of code that is not the user's own. program: exceptions to that, which are.
    """

    __slots__ = ("internal", "program")

    def __init__(self, internal: Sequence[str] = (), program: Sequence[str] = ()) -> None:
        self.internal = tuple(internal)
        self.program = tuple(program)


def known_prefixes() -> Prefixes:
    """Return the prefixes of this process.

    Internal is what torch, the standard library and hangwatch are made of, and all that is
    installed but for the program that was started; under the names that sys.path has for
    them, and under their real ones.
    """
    directories = [os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(__file__))]
    path: list[object] = [*sys.path]  # a program may put anything there
    entries = [entry for entry in path if isinstance(entry, str)]
    directories += [entry for entry in entries if os.path.basename(entry) in LIBRARIES]
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "__file__", None):
        directories.append(os.path.dirname(str(torch.__file__)))
    program = program_code(sys.orig_argv)
    names = list(dict.fromkeys(name for path in directories for name in _both(f"{path}/")))
    return Prefixes(names, list(filter(_is_text, _both(program))) if program else ())


def _is_text(name: str) -> bool:
    """Return True if a name can be written: that of a file may be no UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _both(name: str) -> list[str]:
    """Return the absolute and the real path of ``name``, each with a slash if it ends in one."""
    end = "/" if name.endswith("/") else ""
    return list(dict.fromkeys((os.path.abspath(name) + end, os.path.realpath(name) + end)))


def is_internal(file: str, prefixes: Prefixes) -> bool:
    """Return True if a code object's file belongs to no user: a library's, or generated."""
    if file.startswith(prefixes.program):
        return False
    if file.startswith("<"):
        return not file.startswith(_TYPED) or file.startswith(prefixes.internal)
    return file.startswith(prefixes.internal) or _INDUCTOR in file


def user_site(frame: FrameType | None, prefixes: Prefixes) -> CallSite:
    """Return the site of the innermost user frame at or above ``frame``."""
    while frame is not None:
        code = frame.f_code
        if not is_internal(code.co_filename, prefixes):
            return code.co_filename, frame.f_lineno or 0, code.co_name
        frame = frame.f_back
    return NO_SITE


def public_name(frame: FrameType | None, prefixes: Prefixes) -> str:
    """Return the function of torch.distributed that the user's innermost frame has called.

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


def raised_at(trace: TracebackType | None, prefixes: Prefixes) -> CallSite:
    """Return the site of the innermost user frame of a traceback, else of its innermost frame."""
    innermost = own = NO_SITE
    while trace is not None:
        code = trace.tb_frame.f_code
        innermost = code.co_filename, trace.tb_lineno or 0, code.co_name
        if not is_internal(code.co_filename, prefixes):
            own = innermost
        trace = trace.tb_next
    return own if own != NO_SITE else innermost
