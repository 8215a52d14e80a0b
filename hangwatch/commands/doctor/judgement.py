"""What the outcome of a trial means: findings, and the figures for JSON."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hangwatch.commands.doctor.outcome import Outcome, Stage
from hangwatch.commands.doctor.trial import Trial
from hangwatch.preflight.finding import Finding, fail, ok, warn
from hangwatch.preflight.job import Job
from hangwatch.text import the_ranks

CHECK, TIMES, LINKS, VERSIONS, VARIABLES, DEVICES = (
    *("trial", "times", "links", "versions", "variables", "devices"),
)
SLOW = 3.0
"""A link that takes so many times as long as usual is at fault."""
SHOWN = 8
_VERDICT = ("hangwatch: FAILED", "hangwatch: HANG", "hangwatch: SLOW")
_ERROR = re.compile(r"(?:\[[^]]*\]: ?)?(?:[\w.]*(?:Error|Exception)\b|\S+: error:)")
"""Such as ``RuntimeError: ...``, behind torchrun's ``[rank0]:`` too."""
_MUST_AGREE = ("torch", "cuda", "nccl")


def judge(trial: Trial, job: Job) -> Iterator[Finding]:
    """The findings, what matters most first."""
    if not trial.outcomes:
        yield _nobody(trial, job)
        return
    first = max(trial.outcomes, key=lambda one: (one.stage is Stage.DONE, -one.rank))
    if first.stage is Stage.DONE:
        yield _met(first, trial)
    else:
        yield from _stuck(first, trial, job)
    yield from _ranks(first)
    if first.times:
        yield from _times(first)


def figures(trial: Trial) -> dict[str, Any]:
    """The trial in JSON: what was started, who came, how long things took."""
    best = max(trial.outcomes, key=lambda one: (one.stage is Stage.DONE, -one.rank), default=None)
    return {
        "command": trial.command,
        "exit_code": trial.exit_code,
        "seconds": round(trial.seconds, 3),
        "stage": best.stage if best else None,
        "world_size": best.world_size if best else None,
        "backend": best.backend or None if best else None,
        "missing": best.missing if best else [],
        "broken": best.broken if best else [],
        "ranks": best.ranks if best else [],
        "times": best.times or None if best else None,
        "verdicts": [report["verdict"]["headline"] for report in trial.reports],
        "output": trial.output,
    }


def _met(first: Outcome, trial: Trial) -> Finding:
    nodes = len({one["node"] for one in first.ranks})
    return ok(
        CHECK,
        f"{_count(first.world_size, 'rank')} on {_count(nodes, 'node')} met and reduced by"
        f" {first.backend}, {trial.seconds:.1f} s in all",
    )


def _nobody(trial: Trial, job: Job) -> Finding:
    """The launcher has started no rank."""
    said = _last_words(trial)
    if trial.exit_code is not None:
        return fail(
            CHECK,
            f"the launcher has ended with exit code {trial.exit_code} before a rank came: {said}",
            f"run it by itself: {shlex.join(trial.command)}",
        )
    late = f"{job.launcher or 'the launcher'} has started no rank within {trial.seconds:.0f} s"
    if job.nodes == 1:
        return fail(
            CHECK,
            f"{late}, and no other node has to come: {said}",
            f"run it by itself, and see what it waits for: {shlex.join(trial.command)}",
        )
    nodes = f"{job.nodes} nodes" if job.several_nodes else "the other nodes"
    here = f"; connected to this one: {', '.join(trial.peers)}" if trial.peers else ""
    return fail(
        CHECK,
        f"{late}: it waits for {nodes}{here}",
        "run the same line on every node within that time (--timeout gives more); from each the"
        " rendezvous has to be reached",
    )


def _stuck(first: Outcome, trial: Trial, job: Job) -> Iterator[Finding]:
    """Where it got stuck, and who is to blame for that."""
    meeting = f"{job.host}:{job.port}" if job.host else "MASTER_ADDR:MASTER_PORT"
    if first.world_size == 0:
        yield warn(
            CHECK,
            first.error,
            "a script that starts its ranks itself cannot be tried so: try torchrun in its place",
        )
    elif first.missing:
        yield fail(
            CHECK,
            f"{the_ranks(first.missing)} of {first.world_size} did not come: "
            f"{_came(first)} waited for them at the store",
            "look at the nodes of the missing ranks: was the line started there, and can they"
            f" reach {meeting}?",
        )
    elif first.broken:
        yield from _broken(first)
    elif first.stage is Stage.STORE:
        yield fail(
            CHECK,
            f"rank {first.rank} cannot join the store at MASTER_ADDR and MASTER_PORT:"
            f" {first.error or 'no answer'}",
            "rank 0 has to run, and its port to be open, before the others can come",
        )
    else:
        where = "init_process_group" if first.stage is Stage.INIT else "a collective"
        yield fail(
            CHECK,
            f"all {first.world_size} ranks came, and {where} failed with {first.backend}:"
            f" {first.error or 'no end'}",
            f"see the verdict and: {_last_words(trial)}",
        )
        for report in trial.reports[:1]:
            verdict = report["verdict"]
            yield fail("verdict", verdict["headline"], " ".join(verdict["advice"]))


def _came(first: Outcome) -> str:
    hosts = Counter(str(one["host"]) for one in first.ranks)
    shown = [f"{_count(count, 'rank')} of {host}" for host, count in list(hosts.items())[:SHOWN]]
    return ", ".join([*shown, *(["others"] if len(hosts) > SHOWN else [])])


def _broken(first: Outcome) -> Iterator[Finding]:
    """Connections that fail: of a node where all to it fail, else each."""
    to = Counter((one["to"], one["address"].partition("%")[0], one["why"]) for one in first.broken)
    for (name, address, why), _ in to.most_common(SHOWN):
        sources = sorted({one["from"] for one in first.broken if one["to"] == name})
        variable = "NCCL_SOCKET_IFNAME" if first.backend == "nccl" else "GLOO_SOCKET_IFNAME"
        loop = "loopback" in why
        remedy = (
            f"on {name} set {variable} to the interface that the others reach, or correct its"
            " /etc/hosts"
            if loop
            else f"let the firewall pass all TCP ports between the nodes, or set {variable}"
        )
        yield fail(
            CHECK,
            f"{_names(sources)} cannot connect to {name}, where {first.backend} listens at"
            f" {address}: {why}",
            remedy,
        )


def _ranks(first: Outcome) -> Iterator[Finding]:
    """What differs between ranks and should not."""
    versions = [one["versions"] for one in first.ranks]
    if not versions:
        return
    differing = [name for name in versions[0] if len({one.get(name) for one in versions}) > 1]
    for name in differing:
        grade = fail if name in _MUST_AGREE else warn
        shown = _by_host(first.ranks, lambda one, name=name: str(one["versions"].get(name)))
        yield grade(VERSIONS, f"{name} differs: {shown}", "install the same on all nodes")
    if not differing:
        shown = ", ".join(f"{name} {version}" for name, version in versions[0].items())
        yield ok(VERSIONS, f"the same on all ranks: {shown}")
    names = sorted({name for one in first.ranks for name in one["environment"]})
    for name in names:
        if len({one["environment"].get(name) for one in first.ranks}) > 1:
            shown = _by_host(first.ranks, lambda one, name=name: one["environment"].get(name, "-"))
            yield fail(VARIABLES, f"{name} differs: {shown}", "set it alike, or nowhere")
    yield from _devices(first.ranks)


def _devices(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Two ranks that would use one GPU."""
    users: dict[tuple[str, str], list[int]] = {}
    for one in ranks:
        if one["device"]:
            users.setdefault((one["node"], one["device"]), []).append(one["rank"])
    shared = {key: found for key, found in users.items() if len(found) > 1}
    for (node, device), found in list(shared.items())[:SHOWN]:
        yield fail(
            DEVICES,
            f"{the_ranks(found)} of {node.partition('/')[2]} share GPU {device}: NCCL refuses that",
            "start as many ranks a node as it has GPUs, and give each its own CUDA_VISIBLE_DEVICES",
        )


def _times(first: Outcome) -> Iterator[Finding]:
    times = first.times
    small, *large = times["all_reduce"]
    shown = [f"barrier {_time(times['barrier_s'])}"]
    shown.append(f"all_reduce of {small['bytes']} B {_time(small['seconds'])}")
    shown += [
        f"of {one['bytes'] >> 20} MiB {_time(one['seconds'])}"
        + (f" ({one['bus_bytes_per_s'] / 1e9:.2g} GB/s)" if one["bus_bytes_per_s"] else "")
        for one in large[-1:]
    ]
    yield ok(TIMES, ", ".join(shown))
    pairs = times["pairs"]
    if not pairs:
        return
    hosts = {one["rank"]: str(one["host"]) for one in first.ranks}
    slow = slow_pairs(pairs)
    for pair in slow[:SHOWN]:
        low, high = (hosts[rank] for rank in pair["ranks"])
        yield warn(
            LINKS,
            f"between {low} and {high}: {_link(pair)}, {SLOW:g} times the others' or more",
            "look at cable, switch port and MTU of the node that is in several such pairs",
        )
    if not slow:
        worst = max(pairs, key=lambda pair: float(pair["round_trip_s"]))
        of = "the slowest of " if len(pairs) > 1 else ""
        name = " and ".join(hosts[rank] for rank in worst["ranks"])
        yield ok(LINKS, f"{of}{_count(len(pairs), 'pair')} of nodes, {name}: {_link(worst)}")


def slow_pairs(pairs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that stand out from the others, in time or in bandwidth.

    What is usual is the better quarter: of three nodes a bad one is in two of three pairs.
    """
    if len(pairs) < 3:  # noqa: PLR2004 (of two nobody knows which one is slow)
        return []
    quarter = len(pairs) // 4
    usual_s = sorted(float(pair["round_trip_s"]) for pair in pairs)[quarter]
    usual = sorted((float(pair["bytes_per_s"]) for pair in pairs), reverse=True)[quarter]
    return [
        pair
        for pair in pairs
        if pair["round_trip_s"] > SLOW * usual_s or pair["bytes_per_s"] < usual / SLOW
    ]


def _by_host(ranks: Sequence[Mapping[str, Any]], value: Any) -> str:
    """Which hosts have which value."""
    found: dict[str, list[str]] = {}
    for one in ranks:
        hosts = found.setdefault(value(one), [])
        if one["host"] not in hosts:
            hosts.append(str(one["host"]))
    return "; ".join(f"{what} on {_names(hosts)}" for what, hosts in found.items())


def _names(names: Sequence[str]) -> str:
    if len(names) > SHOWN:
        return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"
    return ", ".join(names)


def _link(pair: Mapping[str, Any]) -> str:
    return f"round trip {_time(pair['round_trip_s'])}, {pair['bytes_per_s'] / 1e9:.2g} GB/s"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _last_words(trial: Trial) -> str:
    """What was printed last that says something, by others than hangwatch."""
    own = next((at for at, line in enumerate(trial.output) if line.startswith(_VERDICT)), None)
    lines = [line for line in trial.output[:own] if not line.startswith("hangwatch")]
    telling = [line for line in lines if _ERROR.match(line)]
    return (telling or lines or ["nothing was printed"])[-1].strip()[:200]
