"""Whether stacks may be taken: Yama and capabilities."""

from __future__ import annotations

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
