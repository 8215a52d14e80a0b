"""Finds the ranks of torch jobs among the processes of this node, watched or not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangwatch.evidence.processes import PROC, Stat, Tree, environment, read_stat
from hangwatch.model.page import MAX_WORLD

_NAMES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "HANGWATCH_DIR",
    }
)
_DIGITS = 10
MAX_MAPS_BYTES = 32 << 20
_TORCH = re.compile(rb"/libtorch(?:_\w+)?\.so")
"""As it shows in /proc/PID/maps of a process that has loaded torch."""


@dataclass(frozen=True, slots=True)
class JobKey:
    """What tells the jobs of one node apart."""

    master: str = ""
    """``ADDRESS:PORT`` of its store."""
    elastic_id: str = ""
    """torchrun's --rdzv-id."""
    launcher: int = 0
    """Pid of what started the ranks, where the environment tells nothing."""

    def __str__(self) -> str:
        """For people."""
        told = [f"store at {self.master}"] if self.master else []
        if self.elastic_id and self.elastic_id != "none":
            told.append(f"rendezvous id {self.elastic_id}")
        if self.launcher:
            told.append(f"started by pid {self.launcher}")
        return ", ".join(told)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is looked at."""

    pid: int
    start_ticks: int
    job: JobKey
    rank: int = -1
    """-1 where its environment has none."""
    local_rank: int = -1
    world_size: int = 0
    local_world_size: int = 0
    run_dir: str = ""
    """Of the run that it is watched in, empty where it is not."""


def has_torch(pid: int, proc: str = PROC) -> bool:
    """Whether a process has loaded torch; not so where it is somebody else's."""
    try:
        with Path(proc, str(pid), "maps").open("rb") as file:
            return _TORCH.search(file.read(MAX_MAPS_BYTES)) is not None
    except OSError:
        return False


def find(
    pids: Sequence[int], also: Collection[int] = (), proc: str = PROC
) -> tuple[list[Process], Tree]:
    """The ranks of this node, and the tree of all its processes.

    pids: only those, and the ranks below them (below torchrun); none: all that may be
    read. also: pids that are ranks although their environment does not say so.
    """
    tree = Tree(proc)
    below = {pid: list(_below(pid, tree, proc)) for pid in _existing(pids or (0,), proc)}
    every = {stat.pid: stat for stats in below.values() for stat in stats}
    known = {process.pid: process for process in _ranks(every.values(), proc)}
    for pid in every.keys() & set(also) - known.keys():
        known[pid] = _process(every[pid], proc)
    for pid, stats in below.items():
        if pid and not any(stat.pid in known for stat in stats):
            job = JobKey(launcher=pid)
            for stat in _plain(pid, tree, proc):
                known[stat.pid] = Process(stat.pid, stat.start_ticks, job)
    return sorted(known.values(), key=lambda one: (one.rank, one.pid)), tree


def jobs(processes: Iterable[Process]) -> list[list[Process]]:
    """The processes of each job, the largest job first."""
    found: defaultdict[JobKey, list[Process]] = defaultdict(list)
    for process in processes:
        found[process.job].append(process)
    return sorted(found.values(), key=lambda members: (-len(members), members[0].pid))


def absent(members: Sequence[Process]) -> list[int]:
    """Local ranks of a job that have no process here: they have ended, or never began."""
    expected = max(member.local_world_size for member in members)
    return sorted(set(range(expected)) - {member.local_rank for member in members})


def _existing(pids: Iterable[int], proc: str) -> Iterator[int]:
    for pid in pids:
        stat = read_stat(pid, proc) if pid else None
        if pid == 0 or (stat is not None and not stat.ended):
            yield pid


def _below(pid: int, tree: Tree, proc: str) -> Iterator[Stat]:
    stat = read_stat(pid, proc) if pid else None
    if stat is not None:
        yield stat
    yield from tree.descendants(pid)


def _ranks(stats: Iterable[Stat], proc: str) -> Iterator[Process]:
    """The processes that are ranks, of jobs in which somebody has loaded torch.

    What a rank starts (data workers, compilers) inherits its RANK, and so does the
    program from the shell that a launcher started. The rank is the outermost of them
    that has torch; where none has come so far, the innermost.
    """
    claims: defaultdict[JobKey, defaultdict[int, list[tuple[Stat, Process]]]]
    claims = defaultdict(lambda: defaultdict(list))
    for stat in stats:
        process = _process(stat, proc)
        if process.rank >= 0:
            claims[process.job][process.rank].append((stat, process))
    for of_ranks in claims.values():
        loaded = {
            rank: [claim for claim in claimed if has_torch(claim[0].pid, proc)]
            for rank, claimed in of_ranks.items()
        }
        if not any(loaded.values()):
            continue
        for rank, claimed in of_ranks.items():
            if loaded[rank]:
                yield from _outermost(loaded[rank])
            else:
                yield claimed[-1][1]


def _outermost(claimed: Sequence[tuple[Stat, Process]]) -> Iterator[Process]:
    """Those that no other one of them has started, directly or not; parents come first."""
    inside: set[int] = set()
    for stat, process in claimed:
        if stat.ppid not in inside:
            yield process
        inside.add(stat.pid)


def _plain(pid: int, tree: Tree, proc: str) -> Iterator[Stat]:
    """A process that no launcher started as a rank, and its children that have torch."""
    stat = read_stat(pid, proc)
    if stat is not None:
        yield stat
        yield from (child for child in tree.children(pid) if has_torch(child.pid, proc))


def _process(stat: Stat, proc: str) -> Process:
    variables = environment(stat.pid, _NAMES.__contains__, proc)
    address, port = variables.get("MASTER_ADDR", ""), variables.get("MASTER_PORT", "")
    master = f"{address}:{port}" if address or port else ""
    elastic_id = variables.get("TORCHELASTIC_RUN_ID", "")
    return Process(
        stat.pid,
        stat.start_ticks,
        JobKey(master, elastic_id, 0 if master else stat.ppid),
        _number(variables.get("RANK"), -1),
        _number(variables.get("LOCAL_RANK"), -1),
        _number(variables.get("WORLD_SIZE"), 0),
        _number(variables.get("LOCAL_WORLD_SIZE"), 0),
        variables.get("HANGWATCH_DIR", ""),
    )


def _number(text: str | None, otherwise: int) -> int:
    """A number of a variable, which anybody may set: no larger than any job."""
    sane = text and text.isascii() and text.isdecimal() and len(text) < _DIGITS
    return int(text) if text and sane and int(text) <= MAX_WORLD else otherwise
