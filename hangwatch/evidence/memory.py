"""Whether the kernel's out-of-memory killer ended a process.

It sends a plain SIGKILL; only the counters tell: ``oom_kill`` in memory.events
of the process's cgroup (cgroup v2, Documentation/admin-guide/cgroup-v2.rst), in
memory.oom_control (v1), else in /proc/vmstat for the whole machine.
"""

from __future__ import annotations

from pathlib import Path

CGROUP = "/sys/fs/cgroup"
_COUNTER = "oom_kill"


class OomKills:
    """Notices that the counter of a process's cgroup grew since it was seen."""

    def __init__(self, proc: str = "/proc", cgroup: str = CGROUP) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._source: dict[int, Path] = {}
        self._seen: dict[Path, int] = {}

    def begin(self, pid: int) -> None:
        """Note where the counter of a living process is, and how it stands."""
        source = self._find(pid)
        if source is not None:
            self._source[pid] = source
            self._seen.setdefault(source, _count(source) or 0)

    def explains(self, pid: int) -> bool:
        """Whether a kill was counted since the last one that explained an end."""
        source = self._source.get(pid)
        count = _count(source) if source is not None else None
        if source is None or count is None or count <= self._seen[source]:
            return False
        self._seen[source] = count
        return True

    def _find(self, pid: int) -> Path | None:
        """The nearest counter that can be read."""
        try:
            lines = Path(self._proc, str(pid), "cgroup").read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        candidates = []
        for line in lines:
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            inner = path.lstrip("/")
            if not controllers:
                candidates += [Path(self._cgroup, inner, "memory.events")]
                # Inside a container the path may be the host's, the mount our own.
                candidates += [Path(self._cgroup, "memory.events")]
            elif "memory" in controllers.split(","):
                candidates += [Path(self._cgroup, "memory", inner, "memory.oom_control")]
                candidates += [Path(self._cgroup, "memory", "memory.oom_control")]
        candidates.append(Path(self._proc, "vmstat"))
        return next((path for path in candidates if _count(path) is not None), None)


def _count(path: Path) -> int | None:
    """The counter in one of these files, None where it has none."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == _COUNTER and value.strip().isdecimal():
            return int(value)
    return None
