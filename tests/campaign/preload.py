"""A library that is loaded into all processes of a job: failing calls, and another wall clock.

Its source is native/; it is compiled once by the machine's C compiler.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from job import QUICK, Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOURCES = Path(__file__).parent / "native"
MODULES = (".py", ".pyc", ".so")
DRY_RUNS = 2
OWN = ("~/base", "~/tmp", "~/hangwatch-reports", "/dev/shm/hangwatch-#", "/proc/self", "/dev/null")  # noqa: S108
"""Where supervisor and watchdog may write."""
SHARED = "(/usr|/var)?/tmp(/[^/]{1,8})?"
"""Where the interpreter keeps a file without a name if it cannot in TMPDIR."""


_making = threading.RLock()
"""Faults run at the same time; what is made once is made by the first."""


def library() -> str:
    """Its path. Raises RuntimeError without a C compiler."""
    with _making:
        return _compiled()


@functools.cache
def _compiled() -> str:
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        raise RuntimeError("no C compiler")
    directory = tempfile.mkdtemp(prefix="campaign-library-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = f"{directory}/campaign{sysconfig.get_config_var('SHLIB_SUFFIX')}"
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    flags = ("-std=gnu11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC")
    line = [compiler, *flags, "-o", path, *sources, "-ldl", "-lpthread"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return path


class Target(NamedTuple):
    """A call of a process: ``path`` as the library shows it, nth among those of the path."""

    role: str
    call: str
    path: str
    nth: int


class Call(NamedTuple):
    """One call that the library has noted."""

    call: str
    role: str
    what: str
    """``w`` where it could change something, ``r`` where not, ``x`` if it counts for nobody."""
    path: str
    struck: bool


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one job."""

    where: Path

    def environment(
        self, target: Target | None = None, *, error: int = 0, stall_s: float = 0.0, **how: bool
    ) -> dict[str, str]:
        """What makes the library note them, and fail one. how: short, lasting."""
        env = {
            "LD_PRELOAD": library(),
            "CAMPAIGN_LOG": str(self.where / "calls"),
            "CAMPAIGN_WHERE": str(self.where),
            "CAMPAIGN_OURS": os.pathsep.join(_ours(self.where)),
            "CAMPAIGN_STRUCK": str(self.where / "struck"),
        }
        if target:
            flags = (int(how.get("short", False)), int(how.get("lasting", False)))
            fields = (target.role, target.call, target.nth, error, round(stall_s * 1e3), *flags)
            env["CAMPAIGN_FAULT"] = " ".join(map(str, (*fields, target.path)))
        return env

    def read(self) -> Iterator[Call]:
        """All that were noted, in their order."""
        with suppress(FileNotFoundError):
            text = (self.where / "calls").read_text("utf-8", "replace")
            for line in text.splitlines():
                call, role, what, path, *struck = line.split()
                yield Call(call, role, what, path, bool(struck))

    def struck(self) -> list[Call]:
        """Those that the fault was done to."""
        return [call for call in self.read() if call.struck]

    def strangers(self) -> list[str]:
        """What supervisor and watchdog changed, or tried to, outside their own directories."""
        return sorted(
            {
                f"{call.role}: {call.call} {call.path}"
                for call in self.read()
                if call.role in ("supervisor", "watchdog")
                and call.what in "wx"
                and not call.path.startswith(OWN)
                and "/__pycache__" not in call.path  # the interpreter's own
                and not re.fullmatch(SHARED, call.path)
            }
        )

    def changed_by_ranks(self) -> set[str]:
        """What the ranks and their launcher opened for writing, made or removed."""
        return {
            call.path
            for call in self.read()
            if call.role.startswith(("rank", "launcher"))
            and call.what in "wx"
            and not call.path.startswith(OWN)
            and "/__pycache__" not in call.path
        }


def _ours(where: Path) -> list[str]:
    package = _origin("hangwatch").parent
    own = (package, package.parent / "sitecustomize", _origin("hangwatch._native"))
    runs = (where / "base", where / "hangwatch-reports", where / "tmp")
    return [str(path) for path in (*own, *runs)]


@functools.cache
def _origin(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{module} is not installed")
    return Path(spec.origin).resolve()


def usual() -> dict[tuple[str, str], dict[str, int]]:
    """How often each role does each call on each path, in a job with an incident.

    What is not there in each of several jobs is left out. Modules that are loaded are
    the call ``load``.
    """
    with _making:
        return _looked_up()


@functools.cache
def _looked_up() -> dict[tuple[str, str], dict[str, int]]:
    found: list[Counter[tuple[str, str, str]]] = []
    for _ in range(DRY_RUNS):
        with tempfile.TemporaryDirectory(prefix="campaign-dry-") as name:
            calls = Calls(Path(name))
            with Job(calls.where, *QUICK, env={"STALL": "1", **calls.environment()}) as job:
                job.until_ready()
                job.touch("gate")
                job.until_verdict()
                job.touch("release")
                job.finish()
            found.append(_counted(calls.read()))
    table: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for key in sorted(set.intersection(*(set(one) for one in found))):
        table[key[:2]][key[2]] = min(one[key] for one in found)
    return dict(table)


def _counted(calls: Iterable[Call]) -> Counter[tuple[str, str, str]]:
    return Counter(
        (call.role, "load" if call.path.endswith(MODULES) else call.call, call.path)
        for call in calls
        if call.what != "x" and call.call != "renamed"
    )


class Clock:
    """The wall clock of a job, which can be put forward and back."""

    def __init__(self, where: Path) -> None:
        self._file = where / "clock"
        where.mkdir(parents=True, exist_ok=True)
        self.step(0.0)

    def environment(self) -> dict[str, str]:
        """What shows it to a job."""
        return {"LD_PRELOAD": library(), "CAMPAIGN_CLOCK": str(self._file)}

    def step(self, seconds: float) -> None:
        """Let it differ from the machine's by this."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", round(seconds * 1e9)))
