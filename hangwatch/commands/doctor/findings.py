"""Findings from the outcome of a trial, and its figures for JSON."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hangwatch.commands.doctor.outcome import Outcome, Stage
from hangwatch.commands.doctor.trial import Trial
from hangwatch.preflight import Finding, fail, ok, warn
from hangwatch.preflight.job import Job
from hangwatch.text import counted, the_ranks

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


def trial_findings(trial: Trial, job: Job) -> Iterator[Finding]:
    """Yield the findings, the most important first."""
    outcome = _furthest(trial)
    if outcome is None:
        yield _no_rank(trial, job)
        return
    if outcome.stage is Stage.DONE:
        nodes = len({rank["node"] for rank in outcome.ranks})
        yield ok(
            CHECK,
            f"{counted(outcome.world_size, 'rank')} on {counted(nodes, 'node')} met and reduced by"
            f" {outcome.backend}, {trial.seconds:.1f} s in all",
        )
    else:
        yield from _stuck(outcome, trial, job)
    yield from _differences(outcome.ranks)
    yield from _shared_gpus(outcome.ranks)
    if outcome.times:
        yield from _times(outcome)


def figures(trial: Trial) -> dict[str, Any]:
    """Return the trial for JSON."""
    outcome = _furthest(trial)
    values = asdict(outcome) if outcome else {}
    return {
        "command": trial.command,
        "exit_code": trial.exit_code,
        "seconds": round(trial.seconds, 3),
        **{name: values.get(name) or None for name in ("stage", "world_size", "backend", "times")},
        **{name: values.get(name, []) for name in ("missing", "broken", "ranks")},
        "verdicts": [report["verdict"]["headline"] for report in trial.reports],
        "output": trial.output,
    }


def _furthest(trial: Trial) -> Outcome | None:
    """Return the outcome of the first rank that is done, else of the first rank."""
    done = [outcome for outcome in trial.outcomes if outcome.stage is Stage.DONE]
    return next(iter(done or trial.outcomes), None)


def _no_rank(trial: Trial, job: Job) -> Finding:
    """Return why the launcher has started no rank."""
    printed, alone = _last_words(trial), f"run it by itself: {shlex.join(trial.command)}"
    if trial.exit_code is not None:
        return fail(
            CHECK,
            f"the launcher exited with code {trial.exit_code} before any rank started: {printed}",
            alone,
        )
    late = f"{job.launcher or 'the launcher'} started no rank within {trial.seconds:.0f} s"
    if job.nodes == 1:
        return fail(CHECK, f"{late}, and does not wait for another node: {printed}", alone)
    nodes = f"{job.nodes} nodes" if job.several_nodes else "the other nodes"
    here = f"; connected to this one: {', '.join(trial.peers)}" if trial.peers else ""
    return fail(
        CHECK,
        f"{late}: it waits for {nodes}{here}",
        "run the same line on every node within that time (--timeout gives more); each must be"
        " able to reach the rendezvous",
    )


def _stuck(outcome: Outcome, trial: Trial, job: Job) -> Iterator[Finding]:
    """Yield the stage at which the trial got stuck, and its cause."""
    if outcome.world_size == 0:
        yield warn(
            CHECK,
            outcome.error,
            "a script that starts its ranks itself cannot be tried: try torchrun instead",
        )
    elif outcome.missing:
        meeting = f"{job.host}:{job.port}" if job.host else "MASTER_ADDR:MASTER_PORT"
        hosts = Counter(str(rank["host"]) for rank in outcome.ranks)
        came = [f"{counted(n, 'rank')} of {host}" for host, n in list(hosts.items())[:SHOWN]]
        came += ["others"] if len(hosts) > SHOWN else []
        yield fail(
            CHECK,
            f"{the_ranks(outcome.missing)} of {outcome.world_size} did not come: "
            f"{', '.join(came)} waited for them at the store",
            "look at the nodes of the missing ranks: was the line started there, and can they"
            f" reach {meeting}?",
        )
    elif outcome.broken:
        yield from _broken(outcome)
    elif outcome.stage is Stage.STORE:
        yield fail(
            CHECK,
            f"rank {outcome.rank} cannot join the store at MASTER_ADDR and MASTER_PORT:"
            f" {outcome.error or 'no answer'}",
            "rank 0 has to run, and its port to be open, before the others can come",
        )
    else:
        where = "init_process_group" if outcome.stage is Stage.INIT else "a collective"
        yield fail(
            CHECK,
            f"all {outcome.world_size} ranks came, and {where} failed with {outcome.backend}:"
            f" {outcome.error or 'no end'}",
            f"see the verdict and: {_last_words(trial)}",
        )
        for report in trial.reports[:1]:
            verdict = report["verdict"]
            yield fail("verdict", verdict["headline"], " ".join(verdict["advice"]))


def _broken(outcome: Outcome) -> Iterator[Finding]:
    """Yield the connections that fail, one finding for each target and reason."""
    variable = "NCCL_SOCKET_IFNAME" if outcome.backend == "nccl" else "GLOO_SOCKET_IFNAME"
    targets = Counter(
        (link["to"], link["address"].partition("%")[0], link["why"]) for link in outcome.broken
    )
    for (name, address, why), _ in targets.most_common(SHOWN):
        sources = sorted({link["from"] for link in outcome.broken if link["to"] == name})
        yield fail(
            CHECK,
            f"{_shortened(sources)} cannot connect to {name}, where {outcome.backend} listens at"
            f" {address}: {why}",
            f"on {name} set {variable} to the interface that the others reach, or correct its"
            " /etc/hosts"
            if "loopback" in why
            else f"let the firewall pass all TCP ports between the nodes, or set {variable}",
        )


def _differences(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield versions and variables that differ between ranks and should not."""
    versions = [rank["versions"] for rank in ranks]
    if not versions:
        return
    differing = [
        name for name in versions[0] if len({rank["versions"].get(name) for rank in ranks}) > 1
    ]
    for name in differing:
        grade = fail if name in _MUST_AGREE else warn
        shown = _by_host(ranks, lambda rank, name=name: str(rank["versions"].get(name)))
        yield grade(VERSIONS, f"{name} differs: {shown}", "install the same on all nodes")
    if not differing:
        shown = ", ".join(f"{name} {version}" for name, version in versions[0].items())
        yield ok(VERSIONS, f"the same on all ranks: {shown}")
    for name in sorted({name for rank in ranks for name in rank["environment"]}):
        if len({rank["environment"].get(name) for rank in ranks}) > 1:
            shown = _by_host(ranks, lambda rank, name=name: rank["environment"].get(name, "-"))
            remedy = "set it to the same value on all nodes, or unset it"
            yield fail(VARIABLES, f"{name} differs: {shown}", remedy)


def _by_host(ranks: Sequence[Mapping[str, Any]], value: Callable[..., str]) -> str:
    """Return each value with the hosts that have it."""
    hosts: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for rank in ranks:
        hosts[value(rank)][str(rank["host"])] = None
    return "; ".join(f"{what} on {_shortened(list(names))}" for what, names in hosts.items())


def _shared_gpus(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    users: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        if rank["device"]:
            users[rank["node"], rank["device"]].append(rank["rank"])
    shared = [(key, same) for key, same in users.items() if len(same) > 1]
    for (node, device), same in shared[:SHOWN]:
        yield fail(
            DEVICES,
            f"{the_ranks(same)} of {node.partition('/')[2]} share GPU {device}: NCCL refuses that",
            "start as many ranks per node as it has GPUs, and give each its own"
            " CUDA_VISIBLE_DEVICES",
        )


def _times(outcome: Outcome) -> Iterator[Finding]:
    times = outcome.times
    small, *large = times["all_reduce"]
    shown = [f"barrier {_time(times['barrier_s'])}"]
    shown.append(f"all_reduce of {small['bytes']} B {_time(small['seconds'])}")
    shown += [
        f"of {timed['bytes'] >> 20} MiB {_time(timed['seconds'])}"
        + (f" ({timed['bus_bytes_per_s'] / 1e9:.2g} GB/s)" if timed["bus_bytes_per_s"] else "")
        for timed in large[-1:]
    ]
    yield ok(TIMES, ", ".join(shown))
    pairs = times["pairs"]
    if not pairs:
        return
    hosts = {rank["rank"]: str(rank["host"]) for rank in outcome.ranks}
    slow = slow_pairs(pairs)
    for pair in slow[:SHOWN]:
        low, high = (hosts[rank] for rank in pair["ranks"])
        yield warn(
            LINKS,
            f"between {low} and {high}: {_link(pair)}, {SLOW:g} times the others' or more",
            "look at cable, switch port and MTU of the node that is in several of these pairs",
        )
    if not slow:
        worst = max(pairs, key=lambda pair: float(pair["round_trip_s"]))
        of = "the slowest of " if len(pairs) > 1 else ""
        name = " and ".join(hosts[rank] for rank in worst["ranks"])
        yield ok(LINKS, f"{of}{counted(len(pairs), 'pair')} of nodes, {name}: {_link(worst)}")


def slow_pairs(pairs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pairs that stand out from the others, in time or in bandwidth.

    They are compared with the better quarter: of three nodes a bad one is in two of three pairs.
    """
    if len(pairs) < 3:  # noqa: PLR2004 (of two it is not clear which one is slow)
        return []
    quarter = len(pairs) // 4
    usual_s = sorted(float(pair["round_trip_s"]) for pair in pairs)[quarter]
    usual = sorted((float(pair["bytes_per_s"]) for pair in pairs), reverse=True)[quarter]
    return [
        pair
        for pair in pairs
        if pair["round_trip_s"] > SLOW * usual_s or pair["bytes_per_s"] < usual / SLOW
    ]


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _link(pair: Mapping[str, Any]) -> str:
    return f"round trip {_time(pair['round_trip_s'])}, {pair['bytes_per_s'] / 1e9:.2g} GB/s"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _last_words(trial: Trial) -> str:
    """Return the most telling line that others than hangwatch printed last."""
    own = next((at for at, line in enumerate(trial.output) if line.startswith(_VERDICT)), None)
    lines = [line for line in trial.output[:own] if not line.startswith("hangwatch")]
    telling = [line for line in lines if _ERROR.match(line)]
    return (telling or lines or ["nothing was printed"])[-1].strip()[:200]
