"""Where the program that was started is installed, if it is: its code is the user's own, too.

Teams train with packages that lie in site-packages (``torchrun -m company.train``, or a console
script); what else lies there are libraries.
"""

from __future__ import annotations

import os
import re
import sys

from hangwatch.safety.foreign import Ignoring

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Sequence

LIBRARIES = ("site-packages", "dist-packages")
"""Names of directories that packages are installed to."""
_RUNNERS = frozenset(
    {"torch", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "lightning_fabric"}
    | {
        "ray",
        "horovod",
        "mpi4py",
        "pytest",
        "IPython",
        "ipykernel",
        "coverage",
        "debugpy",
        "_pytest",
    }
)
"""Packages that run a program of somebody else's."""
_OURS = "hangwatch"
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Options of Python that take the next word."""
_IMPORT = re.compile(rb"^from ([\w.]+) import ", re.MULTILINE)
_SCRIPT_BYTES = 4096


def started(words: Sequence[str]) -> tuple[str, str]:
    """(module, path) of what a command line of Python runs (sys.orig_argv); one is empty, or both.

    Both are where it runs a text (-c), or what it reads from its standard input.
    """
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, ""), ""
        if word in _WITH_VALUE:
            next(rest, "")
        elif word.startswith("-"):
            if word.startswith(("-c", "-m")) or word == "-":
                return word.removeprefix("-m") if word.startswith("-m") else "", ""
        else:
            return "", word
    return "", ""


def program_code(words: Sequence[str], path: Sequence[object] | None = None) -> str:
    """The directory of the package that is the program, with a trailing slash; or its one file.

    words: sys.orig_argv. path: sys.path. Empty where the program is not installed, or where a
    package runs another one's program.
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
    return ""


def _imported_by(script: str) -> str:
    """The module that a console script imports its function from."""
    from pathlib import Path

    from hangwatch.safety import untrusted  # as late as possible: few programs are started so

    with Ignoring(OSError):
        handle = untrusted.open_file(Path(script), follow=True)
        try:
            found = _IMPORT.search(untrusted.read_from(handle, _SCRIPT_BYTES))
            return found[1].decode() if found else ""
        finally:
            os.close(handle)
    return ""


def _code_of(module: str, path: Sequence[object]) -> str:
    """The code of the package that a module is of, by the first entry of sys.path that has it."""
    top = module.partition(".")[0]
    for entry in path:
        if not isinstance(entry, str):
            continue  # a program may put anything there
        single = os.path.exists(os.path.join(entry, f"{top}.py"))
        if single or os.path.exists(os.path.join(entry, top)):
            inside = f"{top}.py" if single else f"{module.replace('.', '/')}/"
            return _below(f"{entry}/", inside) if os.path.basename(entry) in LIBRARIES else ""
    return ""


def _below(library: str, inside: str) -> str:
    """The package, or the one module, that a path in a library is of."""
    top, _, rest = inside.partition("/")
    if top.removesuffix(".py") in _RUNNERS:
        return ""
    if top == _OURS:  # whose agent is in every process
        top = f"{top}/{rest.partition('/')[0]}"
    return f"{library}{top}" if top.endswith(".py") else f"{library}{top}/"
