"""The nodes, the processes worth a look, and the GPUs."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangwatch.report import schema
from hangwatch.report.html.ranksets import RankSet, seconds, shortened, words
from hangwatch.report.schema import Report

MOST_ROWS = 24
EACH_GPU = 16
"""Ranks of a job of which each GPU is shown."""
GIB = 1 << 30
HOTTER_C = 15
"""Degrees above the median from which a GPU is worth a look."""
IDLE = 0.5
"""Share of the median utilisation below which one is."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node, or several of which nothing is to be told apart."""

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
    """Of 1, for the bar."""
    memory: str
    temperature: str
    power: str
    clock: str
    faults: str


@dataclass(frozen=True, slots=True)
class Machines:
    """All of that, and what is left out."""

    nodes: tuple[Node, ...]
    processes: tuple[Process, ...]
    gpus: tuple[Gpu, ...]
    nodes_note: str
    processes_note: str
    gpus_note: str


def machines(report: Report) -> Machines:
    """What is known of nodes, processes and GPUs."""
    culprits = set(report["verdict"]["culprits"])
    nodes = sorted(_nodes(report, culprits), key=lambda n: (not n.culprit, -n.ranks.count))
    odd = [rank for rank in report["ranks"] if rank["rank"] in culprits or _is_odd(rank)]
    odd.sort(key=lambda rank: rank["rank"] not in culprits)
    gpus, gpus_note = _gpus(report, culprits)
    return Machines(
        tuple(nodes[:MOST_ROWS]),
        tuple(_process(rank, rank["rank"] in culprits) for rank in odd[:MOST_ROWS]),
        gpus,
        _left_out(len(nodes), "nodes"),
        _left_out(len(odd), "processes"),
        gpus_note,
    )


def _left_out(count: int, what: str) -> str:
    return f"{count - MOST_ROWS:,} more {what} are in report.json." if count > MOST_ROWS else ""


def _nodes(report: Report, culprits: set[int]) -> Iterator[Node]:
    """Nodes with a culprit or a dead rank one by one, the others by how many ranks they have."""
    by_node: defaultdict[str, list[schema.Rank]] = defaultdict(list)
    for rank in report["ranks"]:
        by_node[rank["node"]].append(rank)
    alike: defaultdict[tuple[bool, int, int, str], list[str]] = defaultdict(list)
    for name, ranks in by_node.items():
        dead = sum(not rank["process"]["alive"] for rank in ranks)
        mine = frozenset(rank["rank"] for rank in ranks) & culprits
        alone = name if mine or dead else ""
        alike[bool(mine), len(ranks), dead, alone].append(name)
    for (guilty, count, dead, _), names in alike.items():
        members = [rank["rank"] for name in names for rank in by_node[name]]
        state = f"{dead} of {count} processes ended" if dead else "all processes alive"
        shown = ", ".join(name or "(unknown)" for name in names[:3])
        if len(names) > 3:  # noqa: PLR2004 (as many as are named)
            shown = f"{len(names):,} nodes with {count} ranks each: {shown}, ..."
        yield Node(shortened(shown), RankSet.of(members), bool(guilty), state)


def _is_odd(rank: schema.Rank) -> bool:
    process = rank["process"]
    return not process["alive"] or bool(rank["exception"]) or process["state"] in ("T", "t", "Z")


def _process(rank: schema.Rank, culprit: bool) -> Process:  # noqa: FBT001
    exception = rank["exception"]
    text = f"{exception['type']}: {exception['message']}" if exception else ""
    return Process(
        RankSet.of([rank["rank"]]),
        culprit,
        shortened(rank["node"], 60),
        rank["pid"],
        words(rank["phase"]),
        shortened(_state(rank["process"])),
        shortened(text, 400),
    )


def _state(process: schema.Process) -> str:
    """How a process is, or how it ended."""
    if process["alive"]:
        where = f" in {process['wchan']}" if process["wchan"] else ""
        state = _STATES.get(process["state"], process["state"] or "alive")
        tracer = f", traced by process {process['tracer_pid']}" if process["tracer_pid"] else ""
        return f"{state}{where}{tracer}"
    how = "ended"
    if process["signal"]:
        how = f"ended by {_signal_name(process['signal'])}"
    elif process["exit_code"] is not None:
        how = f"exited with {process['exit_code']}"
    if process["oom_killed"]:
        how = f"{how}, out of memory"
    if process["gone_age_s"] is not None:
        how = f"{how}, {seconds(process['gone_age_s'])} before the verdict"
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _gpus(report: Report, culprits: set[int]) -> tuple[tuple[Gpu, ...], str]:
    """Of a small job all; of a large one the culprits' and those that stand out."""
    having = [(rank["rank"], gpu) for rank in report["ranks"] if (gpu := rank.get("gpu"))]
    if not having:
        return (), ""
    heats = [heat for _, gpu in having if (heat := gpu.get("temperature_c")) is not None]
    loads = [load for _, gpu in having if (load := gpu.get("utilization")) is not None]
    usual = {
        field: sorted(known)[len(known) // 2]
        for field, known in (("temperature_c", heats), ("utilization", loads))
        if known
    }
    shown = [
        (rank, gpu)
        for rank, gpu in having
        if len(having) <= EACH_GPU or rank in culprits or _stands_out(gpu, usual)
    ]
    shown.sort(key=lambda item: (item[0] not in culprits, not _faults(item[1]), item[0]))
    note = ""
    if len(shown) < len(having) or len(shown) > MOST_ROWS:
        note = f"{len(having) - len(shown[:MOST_ROWS]):,} of {len(having):,} GPUs are not shown."
        if "utilization" in usual:
            note = f"{note} The median of all is {usual['utilization']:.0%} busy."
    return tuple(_gpu(rank, gpu, rank in culprits) for rank, gpu in shown[:MOST_ROWS]), note


def _stands_out(gpu: schema.Gpu, usual: Mapping[str, float]) -> bool:
    heat, busy = gpu.get("temperature_c"), gpu.get("utilization")
    hot = heat is not None and heat > usual["temperature_c"] + HOTTER_C
    idle = busy is not None and busy < usual["utilization"] * IDLE
    return bool(_faults(gpu)) or hot or idle


def _faults(gpu: schema.Gpu) -> str:
    parts = [f"Xid {number} x {count}" for number, count in (gpu.get("xids") or {}).items()]
    if gpu.get("ecc_uncorrected"):
        parts.append(f"{gpu['ecc_uncorrected']} uncorrected ECC errors")
    parts += [f"throttled: {words(reason)}" for reason in gpu.get("throttle") or ()]
    return shortened(", ".join(parts))


def _nth(index: int | None) -> str:
    return "" if index is None else f" {index}"


def _gpu(rank: int, gpu: schema.Gpu, culprit: bool) -> Gpu:  # noqa: FBT001
    busy = gpu.get("utilization")
    used, total = gpu.get("memory_used_bytes"), gpu.get("memory_total_bytes")
    memory = "" if used is None else f"{used / GIB:.1f} GiB"
    if used is not None and total:
        memory = f"{used / GIB:.1f} of {total / GIB:.0f} GiB"
    clock = gpu.get("sm_clock_hz")
    return Gpu(
        RankSet.of([rank]),
        culprit,
        shortened(f"{gpu.get('name') or 'GPU'}{_nth(gpu.get('index'))}", 60),
        "" if busy is None else f"{busy:.0%}",
        None if busy is None else max(0.0, min(1.0, busy)),
        memory,
        "" if gpu.get("temperature_c") is None else f"{gpu['temperature_c']:g} °C",
        "" if gpu.get("power_w") is None else f"{gpu['power_w']:.0f} W",
        "" if clock is None else f"{clock / 1e6:.0f} MHz",
        _faults(gpu),
    )
