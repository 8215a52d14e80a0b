"""Whether stacks may be taken: Yama and capabilities."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from hangwatch.preflight.finding import Finding, ok, warn

CHECK = "ptrace"
_CAP_SYS_PTRACE = 19  # linux/capability.h
_RELATIONS, _ADMIN, _NOBODY = "1", "2", "3"
_GRANT = (
    "docker run --cap-add SYS_PTRACE; in Kubernetes securityContext.capabilities.add: [SYS_PTRACE]"
)


def ptrace(proc: str = "/proc") -> Finding:
    """What the kernel lets hangwatch see of the ranks (ptrace(2), Yama.rst)."""
    scope = _read(proc, "sys/kernel/yama/ptrace_scope").strip()
    capable = bool(_capabilities(proc) >> _CAP_SYS_PTRACE & 1)
    yama = f"kernel.yama.ptrace_scope is {scope}" if scope else "no Yama"
    shown = f"{yama}, {'with' if capable else 'no'} CAP_SYS_PTRACE"
    if scope == _NOBODY:
        return warn(
            CHECK, f"{shown}: no process may read another", "only a reboot takes scope 3 back"
        )
    if scope == _ADMIN and not capable:
        return warn(CHECK, f"{shown}: no stacks", f"sysctl kernel.yama.ptrace_scope=1, or {_GRANT}")
    if scope == _RELATIONS and not capable:
        return ok(CHECK, f"{shown}: the ranks allow hangwatch, and nobody else, to look")
    return ok(CHECK, shown)


def _capabilities(proc: str) -> int:
    for line in _read(proc, "self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    return 0


def _read(proc: str, name: str) -> str:
    try:
        return Path(proc, name).read_text("utf-8", "replace")
    except OSError:
        return ""


SHM_BYTES = 1 << 30
"""Docker's default is 64 MiB; data loaders with workers hand their batches over there."""
RANK_BYTES = 1 << 30
"""torch with CUDA takes several hundred MiB of host memory before any data."""
LEAST_FILES = 4096
FILES_A_PEER = 4
"""Sockets to each other rank (gloo connects all with all, for each group) and pipes."""
_UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2**63 for no limit."""


def shared_memory(
    directory: str = "/dev/shm",  # noqa: S108 (looked at only)
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
) -> Finding:
    """Whether batches of data loader workers, NCCL's buffers and our pages find room."""
    check = "shm"
    remedy = "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir of medium Memory"
    try:
        space = statvfs(directory)
    except OSError as error:
        return warn(check, f"{directory}: {error.strerror}", remedy)
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    shown = f"{directory} has {_size(size)}, {_size(free)} free"
    if free < SHM_BYTES:
        return warn(check, f"{shown}: data loader workers may die of a bus error", remedy)
    return ok(check, shown)


def open_files(
    world_size: int | None, limit: Callable[[int], tuple[int, int]] = resource.getrlimit
) -> Finding:
    """Whether a rank may open as many sockets as its peers and loaders take."""
    soft, hard = limit(resource.RLIMIT_NOFILE)
    needed = max(LEAST_FILES, FILES_A_PEER * (world_size or 0) + LEAST_FILES // 4)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        shown = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft}"
        return ok("files", f"{shown} open files a process")
    upto = "" if hard == resource.RLIM_INFINITY or hard >= needed else f" (hard limit: {hard})"
    return warn(
        "files",
        f"only {soft} open files a process{upto}: sockets to ranks and data loaders need more",
        f"ulimit -n {needed}",
    )


def cores(
    pattern_file: str = "/proc/sys/kernel/core_pattern",
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit,
) -> Finding:
    """What a rank that crashes leaves, and how long the others wait for that."""
    soft, _ = limit(resource.RLIMIT_CORE)
    try:
        pattern = Path(pattern_file).read_text("utf-8", "replace").strip()
    except OSError:
        pattern = "core"
    if pattern.startswith("|"):
        return ok("cores", f"a rank that crashes is handed to {pattern[1:].split()[0]}")
    if soft == 0:
        return ok("cores", "a rank that crashes leaves no core file (ulimit -c 0)")
    size = "all of its memory" if soft == resource.RLIM_INFINITY else f"up to {_size(soft)}"
    return ok(
        "cores",
        f"a rank that crashes first writes {size} to {pattern}, while the others wait;"
        " ulimit -c 0 spares that",
    )


def memory(ranks: int | None, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> Finding:
    """What the container's limit leaves for the ranks of this node."""
    found = [limit for path in _own_groups(proc, cgroups) if (limit := _limit(path))]
    if not found:
        return ok("memory", "no limit of a container or a scheduler")
    bound, used = min(found)
    shown = f"limited to {_size(bound)}, {_size(used)} in use"
    if ranks and bound / ranks < RANK_BYTES:
        return warn(
            "memory",
            f"{shown}: {_size(bound // ranks)} for each of {ranks} ranks, and torch alone takes"
            " several hundred MiB",
            "raise the limit of the container or of the job, or start fewer ranks",
        )
    return ok("memory", shown)


def _own_groups(proc: str, cgroups: str) -> list[Path]:
    """The groups of this process and above, of v2 and of v1's memory controller (cgroups(7))."""
    try:
        lines = Path(proc, "self", "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            root = Path(cgroups)
        elif "memory" in controllers.split(","):
            root = Path(cgroups, "memory")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
    return found


def _limit(group: Path) -> tuple[int, int] | None:
    """Limit and use of a group in bytes, None where it has no limit."""
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            bound, used = (int((group / name).read_text("ascii")) for name in (limit, usage))
        except (OSError, ValueError):  # "max": no limit
            continue
        if bound < _UNLIMITED:
            return bound, used
    return None


def _size(count: int) -> str:
    """Bytes for people."""
    gib = count / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{count >> 20} MiB"
