"""Which GPU each rank of this node would get."""

from __future__ import annotations

from collections.abc import Mapping

from hangwatch.preflight.finding import Finding, ok, warn

CHECK = "devices"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices(environ: Mapping[str, str], gpus: int, local_ranks: int | None) -> list[Finding]:
    """GPUs of the machine (0: none, or not known) against the ranks of this node."""
    visible = environ.get(VISIBLE)
    if not gpus:
        return [ok(CHECK, "no GPU is seen: the ranks use the CPU")]
    named = _named(visible) if visible is not None else [str(index) for index in range(gpus)]
    shown = f"{VISIBLE}={visible}" if visible is not None else f"{_gpus(gpus)}"
    found = []
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        found.append(
            warn(
                CHECK,
                f"{shown} names {', '.join(twice)} twice: CUDA sees no device at all",
                "name each device once",
            )
        )
    absent = [name for name in named if name.isdecimal() and int(name) >= gpus]
    if absent:
        found.append(
            warn(
                CHECK,
                f"{shown} names {absent[0]}, and there are {_gpus(gpus)}: it hides what follows",
                f"use 0 to {gpus - 1}",
            )
        )
    usable = len(named[: named.index(absent[0])]) if absent else len(named)
    if local_ranks and not twice and local_ranks > usable > 0:
        found.append(
            warn(
                CHECK,
                f"{local_ranks} ranks on {_gpus(usable)} ({shown}): NCCL refuses two ranks on one",
                f"start {usable} a node (--nproc-per-node={usable}), or make more visible",
            )
        )
    if local_ranks and not found and usable == 0:
        found.append(
            warn(CHECK, f"{shown}: the GPUs are hidden from the ranks", f"unset {VISIBLE}")
        )
    if found:
        return found
    ranks = f"for {local_ranks} rank{'s' if local_ranks != 1 else ''}" if local_ranks else "visible"
    return [ok(CHECK, f"{_gpus(usable)} {ranks} ({shown})")]


def _named(visible: str) -> list[str]:
    """What CUDA makes of the list: it ends at the first that is none."""
    names = []
    for name in visible.split(","):
        text = name.strip()
        if not text or text.startswith("-"):
            break
        names.append(text)
    return names


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count != 1 else ''}"
