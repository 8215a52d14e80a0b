"""Turns the evidence of a rank into the snapshot that diagnose() judges. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hangwatch.evidence.flight import rank_ops
from hangwatch.evidence.flight.entries import FlightDump
from hangwatch.evidence.pages.reader import FIRST_EXTRA_SLOT
from hangwatch.evidence.processes import LaunchedRank
from hangwatch.model.calls import GroupKey
from hangwatch.model.frames import marked
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.operations import NCCL
from hangwatch.model.page import PageGroup, RankPage
from hangwatch.model.snapshot import (
    Child,
    GroupProgress,
    Mark,
    NewGroup,
    ProcessState,
    RankSnapshot,
    ThreadStack,
)

_NCCL_ALONE = frozenset(NCCL) | {f"cuda:{name}" for name in NCCL}
"""Backends of groups in which everything runs on a device, in its order."""


def rank_snapshot(  # noqa: PLR0913 (both sources of its calls, and their clocks)
    page: RankPage,
    process: ProcessState,
    node: str,
    now_ns: int,
    *,
    clock_offset_ns: int | None = None,
    flight: FlightDump | None = None,
) -> RankSnapshot:
    """Return one rank from its page and the other evidence. The clocks are its node's."""
    ended_by = page.exception
    ended_age_s = _age_s(ended_by.at_ns, now_ns) if ended_by else None
    in_cpp = ended_by is not None and ended_by.in_cpp
    if flight is not None:
        page = replace(page, groups=with_flight(page.groups, flight, is_newer=in_cpp))
    return RankSnapshot(
        rank=page.identity.rank,
        node=node,
        pid=page.identity.pid,
        phase=page.phase,
        process=process,
        phase_age_s=_age_s(page.phase_ns, now_ns) or 0.0,
        groups=tuple(group_progress(group, now_ns) for group in page.groups),
        ops=rank_ops(page, flight, now_ns, clock_offset_ns),
        in_call=page.in_call,
        in_call_age_s=(_age_s(page.in_call_ns, now_ns) or 0.0) if page.in_call else 0.0,
        in_call_site=page.in_call_site,
        marks=tuple(
            Mark(mark.kind, mark.text, mark.count, _age_s(mark.ns, now_ns) or 0.0, mark.site)
            for mark in page.marks
        ),
        new_groups=tuple(
            NewGroup(
                call.index,
                call.number,
                GroupKey(call.ranks),
                call.site,
                _age_s(call.ns, now_ns) or 0.0,
            )
            for call in page.new_groups
        ),
        exception=None if in_cpp else ended_by,
        exception_age_s=None if in_cpp else ended_age_s,
        abort=ended_by if in_cpp else None,
        abort_age_s=ended_age_s if in_cpp else None,
        handling=page.handling,
        gil_age_s=_age_s(page.gil_ns, now_ns),
        heartbeat_age_s=_age_s(page.heartbeat_ns, now_ns),
        pending_age_s=_age_s(page.pending_since_ns, now_ns),
        born_age_s=_age_s(page.created_ns, now_ns),
        program=page.identity.program,
        flight=flight is not None and bool(flight.entries),  # with a buffer of size 0 it has none
        recorder=page.recorder,
        missing_evidence=tuple(_not_recorded(page)),
    )


def with_process(
    rank: RankSnapshot,
    threads: tuple[ThreadStack, ...] | None,
    children: Iterable[Child],
    processors: float | None,
    missing: Iterable[str],
) -> RankSnapshot:
    """Add what the rank's process shows, and what could not be had of it."""
    return replace(
        rank,
        threads=None if threads is None else _marked(threads, rank.program),
        children=tuple(
            replace(child, threads=_marked(child.threads, rank.program)) for child in children
        ),
        processors=processors,
        missing_evidence=(*missing, *rank.missing_evidence),
    )


def _marked(threads: Iterable[ThreadStack], program: str) -> tuple[ThreadStack, ...]:
    return tuple(replace(one, frames=marked(one.frames, program)) for one in threads)


def _not_recorded(page: RankPage) -> Iterable[str]:
    """Yield what the page of a rank lacks, and why, for people."""
    if page.groups_left_out:
        alone = "have no room in its page: their calls are known from PyTorch's Flight Recorder"
        yield f"{page.groups_left_out} of its process groups {alone} alone"
    if page.disarmed:
        yield f"recording stopped: {page.disarmed}"
    if page.recorder_reason:
        yield f"recorded by Python a few times a second: {page.recorder_reason}"
    if page.torch_lacks:
        yield f"with its torch and libraries, {page.torch_lacks}"
    if page.beacons and any("nccl" in group.backend for group in page.groups):
        yield f"GPU progress unavailable: {page.beacons}"


def with_flight(
    groups: Iterable[PageGroup], flight: FlightDump, *, is_newer: bool = False
) -> tuple[PageGroup, ...]:
    """Return groups with the collectives that only the Flight Recorder has.

    Of the groups in the page only those for which a hook of torch's recorded calls beyond what
    the page has counted: it may not know how their backend counts.

    is_newer: the recorder was written as the process was aborted, the page counted before.
    """
    last: dict[str, tuple[int, int]] = {}
    """Name to the newest group that has it and its last collective."""
    hooked = set()
    for entry in flight.entries:
        if not entry.p2p:
            here = entry.pg_id, entry.seq
            last[entry.group_name] = max(here, last.get(entry.group_name, here))
            if entry.is_hooked:
                hooked.add(entry.group_name)
    return tuple(
        replace(group, enqueued=max(group.enqueued, last[group.name][1]))
        if group.name in last
        and (group.slot >= FIRST_EXTRA_SLOT or (group.alive and (is_newer or group.name in hooked)))
        else group
        for group in groups
    )


def group_progress(group: PageGroup, now_ns: int) -> GroupProgress:
    """Return how far a rank has come in a group, by its page."""
    completed, started = group.completed, -1
    in_order = group.backend in _NCCL_ALONE
    if group.reached >= 0:
        if in_order:
            completed = max(completed, group.passed)
        started = max(completed, group.reached)
    return GroupProgress(
        group.key,
        group.name,
        group.enqueued,
        completed,
        group.p2p,
        group.alive,
        started,
        by_python=group.entered,
        in_order=in_order,
        made_age_s=_age_s(group.made_ns, now_ns),
        ended_age_s=_age_s(group.ended_ns, now_ns),
        changed_age_s=_age_s(group.changed_ns, now_ns),
    )


def launched_snapshot(launched: LaunchedRank, process: ProcessState, node: str) -> RankSnapshot:
    """Return a rank that a launcher started and that has no page: it has not imported torch."""
    return RankSnapshot(
        rank=launched.rank,
        node=node,
        pid=launched.pid,
        phase=Phase.BORN,
        process=process,
        recorder="",
        missing_evidence=("it has no page: it has not imported torch.distributed",),
    )


def waits_itself(page: RankPage) -> bool:
    """True if the rank is blocked in a call; then it is no culprit with data workers."""
    return bool(page.in_call) or any(event.state is OpState.BLOCKED for event in page.events)


def _age_s(then_ns: int, now_ns: int) -> float | None:
    """Return the age of a moment; None for one that never was."""
    return max(0, now_ns - then_ns) / 1e9 if then_ns else None
