"""The contract between launcher and ranks: RANK, WORLD_SIZE, MASTER_ADDR and their like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hangwatch.preflight.finding import Finding, Grade, fail, ok, warn
from hangwatch.preflight.job import Job, number

CHECK = "contract"
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What init_process_group("env://") reads (torch/distributed/rendezvous.py)."""
NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
NAMES = (*NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MAX_PORT = 65535


def contract(environ: Mapping[str, str], job: Job) -> list[Finding]:
    """Whether the variables of one process make sense, alone and together."""
    given = {name: environ[name] for name in NAMES if environ.get(name)}
    if not given:
        return [ok(CHECK, "none of RANK, WORLD_SIZE, ... is set: the launcher will set them")]
    if job.launched:
        kept = ", ".join(given)
        return [ok(CHECK, f"{kept}: set, and set anew for its ranks by {job.launcher}")]
    shown = " ".join(f"{name}={value}" for name, value in given.items())
    found = [*_numbers(given), *_order(given), *_address(given)]
    if not any(finding.grade is Grade.FAIL for finding in found):
        found += _missing(given)
    return found or [ok(CHECK, shown)]


def _numbers(given: Mapping[str, str]) -> Iterator[Finding]:
    for name in NUMBERS:
        if name in given and number(given, name) is None:
            yield fail(CHECK, f"{name}={given[name]} is no number", f"set {name} to a number")
    port = number(given, "MASTER_PORT")
    if port is not None and not 0 < port <= MAX_PORT:
        yield fail(CHECK, f"MASTER_PORT={port} is no port", f"use 1 to {MAX_PORT}")


def _order(given: Mapping[str, str]) -> Iterator[Finding]:
    """Ranks are counted from 0, and no node has more ranks than the job."""
    for low, high in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        rank, size = number(given, low), number(given, high)
        if rank is not None and size is not None:
            yield from out_of_range(rank, size, low, high)
    for low, high in (("LOCAL_WORLD_SIZE", "WORLD_SIZE"), ("LOCAL_RANK", "RANK")):
        less, more = number(given, low), number(given, high)
        if less is not None and more is not None and less > more:
            yield fail(
                CHECK,
                f"{low}={less} is more than {high}={more}: they cannot be of one job",
                "let one launcher set all of them; an old `export` may be left in this shell",
            )


def out_of_range(
    rank: int, size: int, low: str = "RANK", high: str = "WORLD_SIZE"
) -> Iterator[Finding]:
    """A rank that the job does not have."""
    if rank >= size:
        yield fail(
            CHECK,
            f"{low}={rank} with {high}={size}: ranks count from 0 to {max(size - 1, 0)}",
            f"start each rank with a {low} of its own below {high}",
        )


def _address(given: Mapping[str, str]) -> Iterator[Finding]:
    host = given.get("MASTER_ADDR", "")
    if host.startswith("[") or "://" in host or (host.count(":") == 1):
        yield fail(
            CHECK,
            f"MASTER_ADDR={host} is more than a name or an address",
            "leave out brackets, scheme and port; the port goes into MASTER_PORT",
        )


def _missing(given: Mapping[str, str]) -> Iterator[Finding]:
    missing = [name for name in NEEDED if name not in given]
    if missing and ("RANK" in given or "WORLD_SIZE" in given):
        shown = ", ".join(missing)
        yield warn(
            CHECK,
            f"{shown} not set, but {', '.join(given)}: init_process_group() would raise",
            "start with torchrun, which sets all, or export what is missing",
        )


def same_ranks(environs: Iterable[Mapping[str, str]]) -> list[Finding]:
    """Whether the processes of one job, each started as a rank, have ranks of their own."""
    ranks = [number(environ, "RANK") for environ in environs]
    counts = Counter(rank for rank in ranks if rank is not None)
    return [
        fail(
            CHECK,
            f"{count} processes of this node have RANK={rank}: another rank will be missing",
            "give each process a RANK of its own",
        )
        for rank, count in sorted(counts.items())
        if count > 1
    ]
