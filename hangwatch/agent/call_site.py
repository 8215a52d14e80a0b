"""Finds the user's own line on a Python stack, the function called there, and the user's program.

The native module has its own implementation of the first two (native/callsite.cpp) for the calls
that it wraps; this one serves the Python recorder and the rest of the agent, by the same rules.

The user's own code is also the program that was started where that is installed: teams train with
packages that lie in site-packages (``torchrun -m company.train``, or a console script). All else
there are libraries.
"""

from __future__ import annotations

import os
import re
import sys

from hangwatch.safety.foreign import Ignoring

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

_C10D = "/torch/distributed/distributed_c10d.py"
_TYPED = ("<stdin>", "<string>", "<ipython-input", "<python-input")
"""Files of code that people type, or hand to Python by -c; other ``<...>`` is generated code."""
_INDUCTOR = "/torchinductor_"
LIBRARIES = ("site-packages", "dist-packages")
"""Names of directories that packages are installed to."""
_RUNNERS = frozenset(
    {"torch", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "lightning_fabric"}
    | {"ray", "horovod", "mpi4py", "pytest", "_pytest"}
    | {"IPython", "ipykernel", "coverage", "debugpy"}
)
"""Packages that run another one's program."""
_OURS = "hangwatch"
_WITH_VALUE = frozenset("cmWX")
"""Short options of Python that take the rest of their word, or the next one."""
_IMPORT = re.compile(
    rb"^from ([\w.]+) import (\w+)[ \t]*\r?$(?=[\s\S]*\bsys\.exit\(\2\b)", re.MULTILINE
)
"""The contents of the script of an entry point, as all installers make it."""
_SCRIPT_BYTES = 4096

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


def started(words: Sequence[str]) -> tuple[str, str]:
    """Return (module, path) of what a command line of Python (sys.orig_argv) runs.

    One of them is empty; both are where it runs a text (-c) or its standard input.
    """
    rest = iter(words[1:])
    for word in rest:
        if word == "-" or not word.startswith("-"):
            return "", word.removeprefix("-")
        if word == "--check-hash-based-pycs":
            next(rest, "")
        elif not word.startswith("--"):
            at = next((at for at, letter in enumerate(word) if letter in _WITH_VALUE), 0)
            value = (word[at + 1 :] or next(rest, "")) if at else ""
            if at and word[at] in "cm":
                return value if word[at] == "m" else "", ""
    return "", ""


def program_code(words: Sequence[str], path: Sequence[object] | None = None) -> str:
    """Return the program's file; where it is installed its package, a directory ending in a slash.

    words: sys.orig_argv. path: sys.path. Empty where that is not known, or where a package runs
    another one's program.
    """
    module, file = started(words)
    if file and not file.endswith(".py") and os.path.basename(os.path.dirname(file)) == "bin":
        module = _imported_by(file)  # a console script
    if module:
        return _code_of(module, sys.path if path is None else path)
    with Ignoring(OSError):  # the working directory may be gone
        file = os.path.abspath(file) if file else ""
    for name in LIBRARIES:
        before, library, inside = file.partition(f"/{name}/")
        if library:
            return _below(before + library, inside)
    return file if file.endswith(".py") else ""


def _imported_by(script: str) -> str:
    """Return the module that a console script imports its function from."""
    from pathlib import Path

    from hangwatch.safety import untrusted  # as late as possible: few programs are started so

    with Ignoring(OSError):
        handle = untrusted.open_file(Path(script), follow=True)
        try:
            module = _IMPORT.search(untrusted.read_from(handle, _SCRIPT_BYTES))
            return module[1].decode() if module else ""
        finally:
            os.close(handle)
    return ""


def _code_of(module: str, path: Sequence[object]) -> str:
    """Return the package of a module, in the first entry of sys.path that has it."""
    top = module.partition(".")[0]
    for entry in path:
        if not isinstance(entry, str):
            continue  # a program may put anything there
        single = os.path.exists(os.path.join(entry, f"{top}.py"))
        if single or os.path.exists(os.path.join(entry, top)):
            inside = f"{top}.py" if single else f"{module.replace('.', '/')}/"
            if os.path.basename(entry) in LIBRARIES:
                return _below(f"{entry}/", inside)
            files = f"{inside.removesuffix('/')}.py", f"{inside}__main__.py"
            found = (os.path.join(entry, file) for file in (inside, *files))
            return next((file for file in found if os.path.isfile(file)), "")
    return ""


def _below(library: str, inside: str) -> str:
    """Return the package, or the single module, that ``inside`` belongs to in ``library``."""
    top, _, rest = inside.partition("/")
    if top.removesuffix(".py") in _RUNNERS:
        return ""
    if top == _OURS:  # whose agent is in every process
        top = os.path.join(top, os.path.dirname(rest.rstrip("/")))
    return f"{library}{top}" if top.endswith(".py") else f"{library}{top}/"
