"""Control groups of processes, and for how long they were kept from running (cgroups(7))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hangwatch.evidence.processes import PROC

CGROUP = "/sys/fs/cgroup"
_THROTTLED = re.compile(r"^throttled_(?:time (?P<ns>\d+)|usec (?P<us>\d+))\s*$", re.MULTILINE)
"""In ns in version 1, in µs in version 2 (Documentation/scheduler/sched-bwc.rst)."""


def directories(
    pid: int, controller: str, proc: str = PROC, cgroup: str = CGROUP
) -> Iterator[Path]:
    """Yield the groups of a process with a controller, innermost first; none if it has ended.

    Inside of a container its path may be that of the host, so that some do not exist.
    """
    try:
        lines = Path(proc, str(pid), "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = Path(cgroup, controller) if controllers else Path(cgroup)
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def throttled_ns(pid: int, proc: str = PROC, cgroup: str = CGROUP) -> int:
    """Return for how long a limit on the CPU has kept the groups of a process from running.

    The most of all groups; 0 where there is no limit, or that cannot be read.
    """
    most = 0
    for directory in directories(pid, "cpu", proc, cgroup):
        try:
            found = _THROTTLED.search((directory / "cpu.stat").read_text("utf-8", "replace"))
        except OSError:
            continue
        if found:
            most = max(most, int(found["ns"] or 0), 1000 * int(found["us"] or 0))
    return most
