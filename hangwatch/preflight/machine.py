"""Checks of this machine: who may read stacks, memory, files, core dumps and GPUs."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path

from hangwatch.preflight import Finding, ok, warn

_CAP_SYS_PTRACE = 19  # linux/capability.h
_RELATIONS, _ADMIN, _NONE = "1", "2", "3"
_GRANT = (
    "docker run --cap-add SYS_PTRACE; in Kubernetes securityContext.capabilities.add: [SYS_PTRACE]"
)
SHM_BYTES = 1 << 30
"""Docker's default is 64 MiB; data loaders with workers hand their batches over there."""
RANK_BYTES = 1 << 30
"""torch with CUDA takes several hundred MiB of host memory before any data."""
LEAST_FILES = 4096
FILES_A_PEER = 4
"""Sockets to each other rank (gloo connects all with all, for each group) and pipes."""
_UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2**63 for no limit."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def ptrace(proc: str = "/proc") -> Finding:
    """Check that hangwatch may read the ranks: Yama and capabilities (ptrace(2), Yama.rst)."""
    scope = _read(Path(proc, "sys/kernel/yama/ptrace_scope")).strip()
    capable = bool(_capabilities(proc) >> _CAP_SYS_PTRACE & 1)
    yama = f"kernel.yama.ptrace_scope is {scope}" if scope else "no Yama"
    shown = f"{yama}, {'with' if capable else 'no'} CAP_SYS_PTRACE"
    if scope == _NONE:
        what = f"{shown}: no process may read another"
        return warn("ptrace", what, "only a reboot takes scope 3 back")
    if scope == _ADMIN and not capable:
        remedy = f"sysctl kernel.yama.ptrace_scope=1, or {_GRANT}"
        return warn("ptrace", f"{shown}: no stacks", remedy)
    if scope == _RELATIONS and not capable:
        return ok("ptrace", f"{shown}: the ranks allow hangwatch, and no one else, to read them")
    return ok("ptrace", shown)


def _capabilities(proc: str) -> int:
    for line in _read(Path(proc, "self/status")).splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def shared_memory(
    directory: str = "/dev/shm",  # noqa: S108 (never opened)
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
) -> Finding:
    """Check the room for batches of data loader workers, NCCL's buffers and rank pages."""
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
    """Check that a rank may open as many sockets as its peers and loaders take."""
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
    """Describe the core file of a rank that crashes: the other ranks wait for it."""
    soft, _ = limit(resource.RLIMIT_CORE)
    pattern = _read(Path(pattern_file)).strip() or "core"
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
    """Check the share of each rank of this node in the container's memory."""
    limits = [limit for path in _own_groups(proc, cgroups) if (limit := _limit(path))]
    if not limits:
        return ok("memory", "no limit of a container or a scheduler")
    bound, used = min(limits)
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
    """Return the groups of this process and above, v2 and v1's memory controller (cgroups(7))."""
    groups = []
    for line in _read(Path(proc, "self", "cgroup")).splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            root = Path(cgroups)
        elif "memory" in controllers.split(","):
            root = Path(cgroups, "memory")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        groups += [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
    return groups


def _limit(group: Path) -> tuple[int, int] | None:
    """Return limit and use of a group in bytes, None if it has no limit."""
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            bound, used = (int(_read(group / name)) for name in (limit, usage))
        except ValueError:  # no such file, or "max": no limit
            continue
        if bound < _UNLIMITED:
            return bound, used
    return None


def _size(count: int) -> str:
    gib = count / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{count >> 20} MiB"


def devices(environ: Mapping[str, str], gpus: int, local_ranks: int | None) -> list[Finding]:
    """Check the GPUs of the machine (0: none, or not known) against the ranks of this node."""
    check = "devices"
    if not gpus:
        return [ok(check, "no GPU is seen: the ranks use the CPU")]
    visible = environ.get(VISIBLE)
    if visible is None:
        names, shown = [str(index) for index in range(gpus)], _gpus(gpus)
    else:
        # CUDA's list ends at the first entry that is empty or negative.
        entries = map(str.strip, visible.split(","))
        names = list(takewhile(lambda name: name and not name.startswith("-"), entries))
        shown = f"{VISIBLE}={visible}"
    findings = []
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = f"{shown} names {', '.join(twice)} twice: CUDA sees no device at all"
        findings.append(warn(check, what, "name each device once"))
    absent = [name for name in names if name.isdecimal() and int(name) >= gpus]
    if absent:
        what = f"{shown} names {absent[0]}, and there are {_gpus(gpus)}: it hides what follows"
        findings.append(warn(check, what, f"use 0 to {gpus - 1}"))
    usable = names.index(absent[0]) if absent else len(names)
    if local_ranks and not twice and local_ranks > usable > 0:
        findings.append(
            warn(
                check,
                f"{local_ranks} ranks on {_gpus(usable)} ({shown}): NCCL refuses two ranks on one",
                f"start {usable} a node (--nproc-per-node={usable}), or make more visible",
            )
        )
    if local_ranks and not findings and usable == 0:
        what = f"{shown}: the GPUs are hidden from the ranks"
        findings.append(warn(check, what, f"unset {VISIBLE}"))
    if findings:
        return findings
    ranks = f"for {local_ranks} rank{'s' if local_ranks != 1 else ''}" if local_ranks else "visible"
    return [ok(check, f"{_gpus(usable)} {ranks} ({shown})")]


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count != 1 else ''}"
