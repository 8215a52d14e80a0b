"""Checks of environment variables: those of a rank's launcher, and time-outs of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from hangwatch.preflight import Finding, Grade, fail, ok, timing, warn
from hangwatch.preflight.job import Job, number

CONTRACT, TIMEOUTS = "contract", "timeouts"
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Read by init_process_group("env://") (torch/distributed/rendezvous.py)."""
NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
NAMES = (*NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MAX_PORT = 65535
_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"


def contract(environ: Mapping[str, str], job: Job) -> list[Finding]:
    """Check the variables that a launcher sets for a rank, alone and together."""
    given = {name: environ[name] for name in NAMES if environ.get(name)}
    if not given:
        return [ok(CONTRACT, "none of RANK, WORLD_SIZE, ... is set: the launcher will set them")]
    if job.launched:
        what = f"{', '.join(given)}: set here, and {job.launcher} sets them for its ranks"
        return [ok(CONTRACT, what)]
    findings = list(_contradictions(given))
    if not any(finding.grade is Grade.FAIL for finding in findings):
        findings += _missing(given)
    shown = " ".join(f"{name}={value}" for name, value in given.items())
    return findings or [ok(CONTRACT, shown)]


def _contradictions(given: Mapping[str, str]) -> Iterator[Finding]:
    """Yield values that are wrong alone, or do not fit each other."""
    for name in NUMBERS:
        if name in given and number(given, name) is None:
            yield fail(CONTRACT, f"{name}={given[name]} is not a number", f"set {name} to a number")
    port = number(given, "MASTER_PORT")
    if port is not None and not 0 < port <= MAX_PORT:
        yield fail(CONTRACT, f"MASTER_PORT={port} is not a port", f"use 1 to {MAX_PORT}")
    # Ranks count from 0, and no node has more ranks than the job.
    for low, high in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        rank, size = number(given, low), number(given, high)
        if rank is not None and size is not None:
            yield from out_of_range(rank, size, low, high)
    for low, high in (("LOCAL_WORLD_SIZE", "WORLD_SIZE"), ("LOCAL_RANK", "RANK")):
        less, more = number(given, low), number(given, high)
        if less is not None and more is not None and less > more:
            yield fail(
                CONTRACT,
                f"{low}={less} is more than {high}={more}: they cannot be of one job",
                "let one launcher set all of them; an old `export` may be left in this shell",
            )
    host = given.get("MASTER_ADDR", "")
    if host.startswith("[") or "://" in host or (host.count(":") == 1):
        yield fail(
            CONTRACT,
            f"MASTER_ADDR={host} is more than a name or an address",
            "leave out brackets, scheme and port; the port goes into MASTER_PORT",
        )


def out_of_range(
    rank: int, size: int, low: str = "RANK", high: str = "WORLD_SIZE"
) -> Iterator[Finding]:
    """Yield a failure for a rank that the job does not have."""
    if rank >= size:
        yield fail(
            CONTRACT,
            f"{low}={rank} with {high}={size}: ranks count from 0 to {max(size - 1, 0)}",
            f"start each rank with a {low} of its own below {high}",
        )


def _missing(given: Mapping[str, str]) -> Iterator[Finding]:
    missing = ", ".join(name for name in NEEDED if name not in given)
    if missing and ("RANK" in given or "WORLD_SIZE" in given):
        yield warn(
            CONTRACT,
            f"{missing} not set, but {', '.join(given)}: init_process_group() would raise",
            "start with torchrun, which sets all, or export what is missing",
        )


def same_ranks(environs: Iterable[Mapping[str, str]]) -> list[Finding]:
    """Check that processes of one job, each started as a rank, have different ranks."""
    ranks = [number(environ, "RANK") for environ in environs]
    counts = Counter(rank for rank in ranks if rank is not None)
    return [
        fail(
            CONTRACT,
            f"{count} processes of this node have RANK={rank}: another rank will be missing",
            "give each process a RANK of its own",
        )
        for rank, count in sorted(counts.items())
        if count > 1
    ]


def timeouts(environ: Mapping[str, str], suspect_after_s: float | None) -> list[Finding]:
    """Check that hangwatch announces a wait before torch ends it."""
    announced_s = timing.SUSPECT_S if suspect_after_s is None else suspect_after_s
    findings = []
    if announced_s >= timing.NCCL_S:
        findings.append(
            warn(
                TIMEOUTS,
                f"--suspect-after {announced_s:g}: NCCL ends a job after {timing.NCCL_S:g} s,"
                " unless init_process_group() has a longer timeout",
                "leave --suspect-after at auto, or give init_process_group() a longer timeout",
            )
        )
    heartbeat_s = timing.HEARTBEAT_S
    with suppress(ValueError):
        heartbeat_s = float(environ.get(_HEARTBEAT, ""))
    if environ.get("TORCH_NCCL_ENABLE_MONITORING", "1") != "0" and heartbeat_s <= announced_s:
        findings.append(
            warn(
                TIMEOUTS,
                f"{_HEARTBEAT}={heartbeat_s:g} ends a stuck rank before a wait is announced"
                f" ({announced_s:g} s)",
                f"set {_HEARTBEAT} to {timing.HEARTBEAT_S:g} or more, or a lower --suspect-after",
            )
        )
    if environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0":
        findings.append(
            warn(
                TIMEOUTS,
                "TORCH_NCCL_ASYNC_ERROR_HANDLING=0: a collective that fails never ends the job",
                "unset it; hangwatch reports either way, and --on-hang abort ends the ranks",
            )
        )
    what = f"a wait is announced within {announced_s:g} s"
    return findings or [
        ok(TIMEOUTS, f"{what}; NCCL would end the job after {timing.NCCL_S:g} s by default")
    ]
