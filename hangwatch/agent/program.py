"""Finds the file that is the program, or the installed package: its code is the user's own, too.

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
"""Packages that run another one's program."""
_OURS = "hangwatch"
_WITH_VALUE = frozenset("cmWX")
"""Short options of Python that take the rest of their word, or the next one."""
_IMPORT = re.compile(
    rb"^from ([\w.]+) import (\w+)[ \t]*\r?$(?=[\s\S]*\bsys\.exit\(\2\b)", re.MULTILINE
)
"""The contents of the script of an entry point, as all installers make it."""
_SCRIPT_BYTES = 4096


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
