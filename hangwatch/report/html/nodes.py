"""The nodes, the processes worth a look, and the GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median_high

from hangwatch.report import schema
from hangwatch.report.schema import Report
from hangwatch.report.wording import LABEL, RankSet
from hangwatch.text import duration, shortened, signal_name, words

MOST_ROWS = 24
EACH_GPU = 16
"""Ranks of a job of which each GPU is shown."""
GIB = 1 << 30
HOTTER_C = 15
"""Degrees above the median from which a GPU is worth a look."""
IDLE = 0.5
"""Share of the median utilisation below which a GPU is worth a look."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node, or several that do not differ."""

    names: str
    ranks: RankSet
    culprit: bool
    state: str


@dataclass(frozen=True, slots=True)
class Process:
    """A rank whose process is worth a look."""

    rank: RankSet
    culprit: bool
    node: str
    pid: int
    phase: str
    state: str
    exception: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; figures as text, empty where unknown."""

    rank: RankSet
    culprit: bool
    name: str
    utilisation: str
    share: float | None
    """Utilisation from 0 to 1, for the bar."""
    memory: str
    temperature: str
    power: str
    clock: str
    faults: str


@dataclass(frozen=True, slots=True)
class Machines:
    """All of that, of the nodes and processes the first MOST_ROWS."""

    nodes: tuple[Node, ...]
    more_nodes: int
    processes: tuple[Process, ...]
    more_processes: int
    gpus: tuple[Gpu, ...]
    gpus_note: str


def machines(report: Report) -> Machines:
    """The nodes, processes and GPUs of a report."""
    culprits = set(report["verdict"]["culprits"])
    nodes = sorted(_nodes(report, culprits), key=lambda n: (not n.culprit, -n.ranks.count))
    odd = [rank for rank in report["ranks"] if rank["rank"] in culprits or _is_odd(rank)]
    odd.sort(key=lambda rank: rank["rank"] not in culprits)
    return Machines(
        tuple(nodes[:MOST_ROWS]),
        max(0, len(nodes) - MOST_ROWS),
        tuple(_process(rank, culprits) for rank in odd[:MOST_ROWS]),
        max(0, len(odd) - MOST_ROWS),
        *_gpus(report, culprits),
    )


def _nodes(report: Report, culprits: set[int]) -> Iterator[Node]:
    """Nodes with a culprit or a dead rank one by one, the others by how many ranks they have."""
    by_node: defaultdict[str, list[schema.Rank]] = defaultdict(list)
    for rank in report["ranks"]:
        by_node[rank["node"]].append(rank)
    alike: defaultdict[tuple[bool, int, int, str], list[str]] = defaultdict(list)
    for name, ranks in by_node.items():
        dead = sum(not rank["process"]["alive"] for rank in ranks)
        guilty = any(rank["rank"] in culprits for rank in ranks)
        alike[guilty, len(ranks), dead, name if guilty or dead else ""].append(name)
    for (guilty, count, dead, _), names in alike.items():
        members = [rank["rank"] for name in names for rank in by_node[name]]
        state = f"{dead} of {count} processes ended" if dead else "all processes alive"
        shown = ", ".join(name or "(unknown)" for name in names[:3])
        if len(names) > 3:  # noqa: PLR2004 (as many as are named)
            shown = f"{len(names):,} nodes with {count} ranks each: {shown}, ..."
        yield Node(shortened(shown), RankSet.of(members), guilty, state)


def _is_odd(rank: schema.Rank) -> bool:
    process = rank["process"]
    return not process["alive"] or bool(rank["exception"]) or process["state"] in ("T", "t", "Z")


def _process(rank: schema.Rank, culprits: set[int]) -> Process:
    exception = rank["exception"]
    text = f"{exception['type']}: {exception['message']}" if exception else ""
    return Process(
        RankSet.of([rank["rank"]]),
        rank["rank"] in culprits,
        shortened(rank["node"], LABEL),
        rank["pid"],
        words(rank["phase"]),
        shortened(_state(rank["process"])),
        shortened(text, 400),
    )


def _state(process: schema.Process) -> str:
    """The state of a process, or how it ended."""
    if process["alive"]:
        where = f" in {process['wchan']}" if process["wchan"] else ""
        state = _STATES.get(process["state"], process["state"] or "alive")
        tracer = f", traced by process {process['tracer_pid']}" if process["tracer_pid"] else ""
        return f"{state}{where}{tracer}"
    how = "ended"
    if process["signal"]:
        how = f"ended by {signal_name(process['signal'])}"
    elif process["exit_code"] is not None:
        how = f"exited with {process['exit_code']}"
    if process["oom_killed"]:
        how = f"{how}, out of memory"
    if process["gone_age_s"] is not None:
        how = f"{how}, {duration(process['gone_age_s'])} before the verdict"
    return f"{how}, when the launcher ended the job" if process["terminated_by_launcher"] else how


_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or a device (D)",
    "T": "stopped (T)",
    "t": "stopped by a debugger (t)",
    "Z": "zombie",
}
"""By the letter of proc(5)."""


def _gpus(report: Report, culprits: set[int]) -> tuple[tuple[Gpu, ...], str]:
    """All GPUs of a small job; of a large one those of culprits, and unusual ones."""
    having = [(rank["rank"], gpu) for rank in report["ranks"] if (gpu := rank["gpu"])]
    heats = [heat for _, gpu in having if (heat := gpu["temperature_c"]) is not None]
    loads = [load for _, gpu in having if (load := gpu["utilization"]) is not None]
    hot = median_high(heats) + HOTTER_C if heats else 0.0
    idle = median_high(loads) * IDLE if loads else 0.0

    def stands_out(gpu: schema.Gpu) -> bool:
        heat, load = gpu["temperature_c"], gpu["utilization"]
        odd = (heat is not None and heat > hot) or (load is not None and load < idle)
        return odd or bool(_faults(gpu))

    shown = [
        (rank, gpu)
        for rank, gpu in having
        if len(having) <= EACH_GPU or rank in culprits or stands_out(gpu)
    ]
    shown.sort(key=lambda item: (item[0] not in culprits, not _faults(item[1]), item[0]))
    del shown[MOST_ROWS:]
    note = ""
    if len(shown) < len(having):
        note = f"{len(having) - len(shown):,} of {len(having):,} GPUs are not shown."
        if loads:
            note = f"{note} The median of all is {median_high(loads):.0%} busy."
    return tuple(_gpu(rank, gpu, culprits) for rank, gpu in shown), note


def _faults(gpu: schema.Gpu) -> str:
    parts = [f"Xid {number} x {count}" for number, count in gpu["xids"].items()]
    if gpu["ecc_uncorrected"]:
        parts.append(f"{gpu['ecc_uncorrected']} uncorrected ECC errors")
    parts += [f"throttled: {words(reason)}" for reason in gpu["throttle"] or ()]
    return shortened(", ".join(parts))


def _gpu(rank: int, gpu: schema.Gpu, culprits: set[int]) -> Gpu:
    busy, used, total = gpu["utilization"], gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    memory = "" if used is None else f"{used / GIB:.1f} GiB"
    if used is not None and total:
        memory = f"{used / GIB:.1f} of {total / GIB:.0f} GiB"
    heat, power, clock = gpu["temperature_c"], gpu["power_w"], gpu["sm_clock_hz"]
    return Gpu(
        RankSet.of([rank]),
        rank in culprits,
        shortened(f"{gpu['name'] or 'GPU'} {gpu['index']}", LABEL),
        "" if busy is None else f"{busy:.0%}",
        None if busy is None else max(0.0, min(1.0, busy)),
        memory,
        "" if heat is None else f"{heat:g} °C",
        "" if power is None else f"{power:.0f} W",
        "" if clock is None else f"{clock / 1e6:.0f} MHz",
        _faults(gpu),
    )
