"""Builds native/pages.cpp, which reads corrupted pages, once for each kind of build.

What was built lies in build/, named by a hash of all its sources.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import threading
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "native"
SOURCE = HERE / "native" / "pages.cpp"
BUILT = ROOT / "build" / "campaign"
OPTIONS = {
    "plain": ("-O0",),
    "address": ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # It has no notion of fences; all that they order is atomic.
    "thread": ("-O1", "-g", "-fsanitize=thread", "-Wno-tsan"),
}
BUILD_S = 600.0
_guard = threading.Lock()


class UnbuiltError(Exception):
    """It cannot be built here, and why."""


def program(kind: str) -> Path:
    """The program, built with these OPTIONS. Raises UnbuiltError."""
    core = re.search(r"set\(core ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())
    if core is None:
        raise UnbuiltError("CMakeLists.txt does not name the core's sources")
    sources = [NATIVE / f"{name}.cpp" for name in core[1].split()]
    headers = [*NATIVE.glob("*.hpp"), NATIVE / "tests" / "opened.hpp"]
    content = b"".join(path.read_bytes() for path in sorted([*sources, *headers, SOURCE]))
    mark = hashlib.sha256(content + repr(OPTIONS[kind]).encode()).hexdigest()[:16]
    built = BUILT / f"pages-{kind}-{mark}"
    with _guard:
        if not built.exists():
            _build(built, [*OPTIONS[kind], *map(str, sources), str(SOURCE)])
    return built


def _build(built: Path, words: Sequence[str]) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        raise UnbuiltError("there is no C++ compiler")
    BUILT.mkdir(parents=True, exist_ok=True)
    fresh = built.with_name(f"{built.name}.{uuid.uuid4().hex}")
    done = subprocess.run(  # noqa: S603 (the compiler)
        [compiler, "-std=c++17", "-pthread", *words, "-ldl", "-o", str(fresh)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=BUILD_S,
    )
    if done.returncode:
        raise RuntimeError(f"{SOURCE.name} cannot be built: {done.stdout[-2000:]}")
    fresh.replace(built)


def run(kind: str, words: Sequence[str], bound_s: float) -> tuple[int | None, str]:
    """Exit code (None where it did not end in time), and what it printed. Raises UnbuiltError."""
    line = [str(program(kind)), *words]
    # Its memory layout is not for every randomisation of addresses.
    fixed = shutil.which("setarch")
    if kind == "thread" and fixed:
        line = [fixed, "-R", *line]
    env = {"PATH": os.defpath, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
    try:
        done = subprocess.run(  # noqa: S603 (what was just built)
            line,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=bound_s,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


@cache
def layout() -> dict[str, tuple[int, int]]:
    """Offset and bytes of each region of a page. Raises UnbuiltError."""
    code, printed = run("plain", ["layout"], BUILD_S)
    if code:
        raise RuntimeError(f"no layout: exit code {code}: {printed}")
    found = {}
    for line in printed.splitlines():
        name, offset, size = line.split()
        found[name] = (int(offset), int(size))
    return found
