"""Counts instructions with valgrind's callgrind, and tells what they were counted with.

What else could change a count is kept fixed: the seed of Python's hashes, the environment,
and the allocator, which is the C library's. Python's own costs some per cent more or less
where a block happens to be the last one of its pool.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from counted import FIGURES

COUNTED = Path(__file__).with_name("counted.py")
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"}
OPTIMISED = ("--enable-optimizations", "--with-lto")


class CountingError(Exception):
    """Nothing could be counted; says why."""


def count_all() -> dict[str, int]:
    """Instructions of one repetition of each figure, in user space. Raises CountingError."""
    if shutil.which("valgrind") is None:
        raise CountingError("valgrind is missing: install it (Debian's package valgrind)")
    with tempfile.TemporaryDirectory(prefix="hangwatch-") as directory:
        words = ["valgrind", "--tool=callgrind", "--vgdb=no", "--dump-before=getppid"]
        words += [f"--callgrind-out-file={directory}/out", sys.executable, str(COUNTED), directory]
        # Some interpreters do not find their libraries without it.
        kept = {k: v for k, v in os.environ.items() if k in {"PATH", "LD_LIBRARY_PATH"}}
        environ = {**kept, **ENVIRONMENT}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)  # noqa: S603 (our own program)
        marks = len([*Path(directory).glob("out.*")])
        if done.returncode != 0 or marks != 2 * len(FIGURES):
            raise CountingError(f"{marks} marks for {len(FIGURES)} figures\n{done.stderr}")
        # The part of a figure is written at the second of its marks.
        totals = [_total(Path(directory, f"out.{part}")) for part in range(2, marks + 1, 2)]
    figures = zip(FIGURES.items(), totals, strict=True)
    return {name: round(total / figure.repetitions) for (name, figure), total in figures}


def _total(part: Path) -> int:
    found = re.search(r"^totals: (\d+)$", part.read_text(), re.MULTILINE)
    if found is None:
        raise CountingError(f"no total in what callgrind wrote: {part.read_text():.200}")
    return int(found[1])


def surroundings() -> dict[str, str]:
    """What a count depends on besides the code, and the processor hardly does."""
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)  # noqa: S607 (as installed)
    return {
        "machine": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "python built with": " ".join([platform.python_compiler(), *_flags()]),
        "native module built with": _compilers(),
        "libc": " ".join(platform.libc_ver()),
        "valgrind": version.stdout.strip(),
    }


def _flags() -> list[str]:
    """How the interpreter was compiled, without the directories in which that was."""
    words = str(sysconfig.get_config_var("PY_CFLAGS") or "").split()
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return [word for word in words if "/" not in word] + [o for o in OPTIMISED if o in options]


def _compilers() -> str:
    """The compilers of the native module: ELF's section .comment names them."""
    spec = importlib.util.find_spec("hangwatch._native")
    content = Path(spec.origin).read_bytes() if spec is not None and spec.origin else b""
    found = re.findall(rb"(?:GCC: \([^)]*\) [0-9.]+|clang version [0-9.]+)", content)
    return ", ".join(sorted({name.decode() for name in found}))
