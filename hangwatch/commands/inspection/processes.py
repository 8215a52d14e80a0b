"""Finds the ranks of torch jobs among the processes of this node, watched or not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangwatch.commands.runs import DIRECTORY
from hangwatch.evidence.processes import PROC, Stat, Tree, environment, read_stat
from hangwatch.model.page import MAX_WORLD
from hangwatch.preflight.job import number

_NAMES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", DIRECTORY),
    }
)
MAX_MAPS_BYTES = 32 << 20
_TORCH = re.compile(rb"/libtorch(?:_\w+)?\.so")
"""A line of /proc/PID/maps of a process that has loaded torch."""


@dataclass(frozen=True, slots=True)
class JobKey:
    """The identity of a job among those of its node."""

    master: str = ""
    """``ADDRESS:PORT`` of its store."""
    elastic_id: str = ""
    """torchrun's --rdzv-id."""
    launcher: int = 0
    """Pid of the process that started the ranks, if the environment names no store."""

    def __str__(self) -> str:
        """The key for people."""
        parts = [f"store at {self.master}"] if self.master else []
        if self.elastic_id and self.elastic_id != "none":
            parts.append(f"rendezvous id {self.elastic_id}")
        if self.launcher:
            parts.append(f"started by pid {self.launcher}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Process:
    """A process to inspect."""

    pid: int
    start_ticks: int
    job: JobKey
    rank: int = -1
    """-1 if its environment has none."""
    local_rank: int = -1
    world_size: int = 0
    local_world_size: int = 0
    run_dir: str = ""
    """Of the run that it is watched in, empty if it is not."""


def has_torch(pid: int, proc: str = PROC) -> bool:
    """Return True if a process has loaded torch; False if its memory map cannot be read."""
    try:
        with Path(proc, str(pid), "maps").open("rb") as file:
            return _TORCH.search(file.read(MAX_MAPS_BYTES)) is not None
    except OSError:
        return False


def find(
    pids: Sequence[int], also: Collection[int] = (), proc: str = PROC
) -> tuple[list[Process], Tree]:
    """Return the ranks of this node, and the tree of all its processes.

    pids: only these, and the ranks below them (below torchrun); none: all that may be
    read. also: pids that are ranks although their environment does not say so.
    """
    tree = Tree(proc)
    if pids:
        roots = {pid: stat for pid in pids if (stat := read_stat(pid, proc)) and not stat.ended}
        below = {pid: [stat, *tree.descendants(pid)] for pid, stat in roots.items()}
    else:
        below = {0: list(tree.descendants(0))}
    every = {stat.pid: stat for stats in below.values() for stat in stats}
    known = {process.pid: process for process in _ranks(every.values(), proc)}
    for pid in every.keys() & set(also) - known.keys():
        known[pid] = _process(every[pid], proc)
    for pid, stats in below.items():
        if pid and not any(stat.pid in known for stat in stats):
            # No launcher started it as a rank: show it, and its children that have torch.
            children = [stat for stat in tree.children(pid) if has_torch(stat.pid, proc)]
            for stat in (stats[0], *children):
                known[stat.pid] = Process(stat.pid, stat.start_ticks, JobKey(launcher=pid))
    return sorted(known.values(), key=lambda process: (process.rank, process.pid)), tree


def jobs(processes: Iterable[Process]) -> list[list[Process]]:
    """Return the processes of each job, the largest job first."""
    members: defaultdict[JobKey, list[Process]] = defaultdict(list)
    for process in processes:
        members[process.job].append(process)
    return sorted(members.values(), key=lambda same: (-len(same), same[0].pid))


def absent(members: Sequence[Process]) -> list[int]:
    """Return the local ranks of a job that have no process here."""
    expected = max(member.local_world_size for member in members)
    return sorted(set(range(expected)) - {member.local_rank for member in members})


def _ranks(stats: Iterable[Stat], proc: str) -> Iterator[Process]:
    """Yield the processes that are ranks, of jobs in which some process has loaded torch.

    Processes that a rank starts (data workers, compilers) inherit its RANK, and so does the
    program from the shell that a launcher started. The rank is the outermost of them
    that has torch; if none has loaded it yet, the innermost.
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
    """Yield the processes that none of the others has started; parents come first."""
    inside: set[int] = set()
    for stat, process in claimed:
        if stat.ppid not in inside:
            yield process
        inside.add(stat.pid)


def _process(stat: Stat, proc: str) -> Process:
    variables = environment(stat.pid, _NAMES.__contains__, proc)
    address, port = variables.get("MASTER_ADDR", ""), variables.get("MASTER_PORT", "")
    master = f"{address}:{port}" if address or port else ""
    elastic_id = variables.get("TORCHELASTIC_RUN_ID", "")
    return Process(
        stat.pid,
        stat.start_ticks,
        JobKey(master, elastic_id, 0 if master else stat.ppid),
        _number(variables, "RANK", -1),
        _number(variables, "LOCAL_RANK", -1),
        _number(variables, "WORLD_SIZE", 0),
        _number(variables, "LOCAL_WORLD_SIZE", 0),
        variables.get(DIRECTORY, ""),
    )


def _number(variables: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return a variable, which anyone may set, as a number: no larger than any job."""
    found = number(variables, name)
    return otherwise if found is None or found > MAX_WORLD else found
