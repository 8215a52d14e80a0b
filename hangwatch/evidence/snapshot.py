"""Turns what was seen of a rank into the snapshot that diagnose() judges. Pure."""

from __future__ import annotations

from dataclasses import replace

from hangwatch.evidence.flight import group_progress, rank_ops
from hangwatch.evidence.pages.left_out import counted
from hangwatch.evidence.processes import LaunchedRank
from hangwatch.model.calls import GroupKey
from hangwatch.model.flight import FlightDump
from hangwatch.model.frames import marked
from hangwatch.model.kinds import Phase
from hangwatch.model.page import ExceptionRecord, PageMark, PageNewGroup, RankPage
from hangwatch.model.snapshot import Child, Mark, NewGroup, ProcessState, RankSnapshot, ThreadStack


def rank_snapshot(  # noqa: PLR0913 (the kinds of evidence, all by keyword)
    page: RankPage,
    process: ProcessState,
    node: str,
    now_ns: int,
    *,
    clock_offset_ns: int | None = None,
    flight: FlightDump | None = None,
    threads: tuple[ThreadStack, ...] | None = None,
    children: tuple[Child, ...] = (),
    processors: float | None = None,
    missing: tuple[str, ...] = (),
) -> RankSnapshot:
    """One rank from its page and what else could be had. The clocks are its node's."""
    if flight is not None:
        page = replace(page, groups=counted(page.groups, flight))
    if page.groups_left_out:
        alone = "have no room in its page: PyTorch's Flight Recorder alone tells of their calls"
        missing = (*missing, f"{page.groups_left_out} of its process groups {alone}")
    if page.disarmed:
        missing = (*missing, f"recording stopped: {page.disarmed}")
    if page.recorder_reason:
        missing = (*missing, f"recorded by Python a few times a second: {page.recorder_reason}")
    if page.torch_lacks:
        missing = (*missing, f"with its torch and libraries, {page.torch_lacks}")
    if page.beacons and any("nccl" in group.backend for group in page.groups):
        missing = (*missing, f"how far its GPU has come: {page.beacons}")
    program = page.identity.program
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
        marks=tuple(_mark(mark, now_ns) for mark in page.marks),
        new_groups=tuple(_new_group(call, now_ns) for call in page.new_groups),
        exception=page.exception,
        exception_age_s=_exception_age_s(page.exception, now_ns),
        handling=page.handling,
        gil_age_s=_age_s(page.gil_ns, now_ns),
        heartbeat_age_s=_age_s(page.heartbeat_ns, now_ns),
        pending_age_s=_age_s(page.pending_since_ns, now_ns),
        born_age_s=_age_s(page.created_ns, now_ns),
        threads=marked(threads, program) if threads is not None else None,
        children=tuple(
            replace(child, threads=marked(child.threads, program)) for child in children
        ),
        processors=processors,
        program=program,
        flight=flight is not None and bool(flight.entries),  # with a buffer of size 0 it has none
        recorder=page.recorder,
        missing_evidence=missing,
    )


def launched_snapshot(  # noqa: PLR0913 (as above)
    launched: LaunchedRank,
    process: ProcessState,
    node: str,
    *,
    threads: tuple[ThreadStack, ...] | None = None,
    children: tuple[Child, ...] = (),
    processors: float | None = None,
    missing: tuple[str, ...] = (),
) -> RankSnapshot:
    """A rank that a launcher started and that has no page: it never came to torch."""
    return RankSnapshot(
        rank=launched.rank,
        node=node,
        pid=launched.pid,
        phase=Phase.BORN,
        process=process,
        threads=threads,
        children=children,
        processors=processors,
        recorder="",
        missing_evidence=("it has no page: it has not imported torch.distributed", *missing),
    )


def waits_itself(page: RankPage) -> bool:
    """Whether the rank is blocked in a call; then it is no culprit with data workers."""
    return bool(page.in_call) or any(event.state == "blocked" for event in page.events)


def _new_group(call: PageNewGroup, now_ns: int) -> NewGroup:
    """A call of new_group with its age."""
    age_s = _age_s(call.ns, now_ns) or 0.0
    return NewGroup(call.index, call.number, GroupKey(call.ranks), call.site, age_s)


def _mark(mark: PageMark, now_ns: int) -> Mark:
    """A mark with its age."""
    return Mark(mark.kind, mark.text, mark.count, _age_s(mark.ns, now_ns) or 0.0, mark.site)


def _exception_age_s(exception: ExceptionRecord | None, now_ns: int) -> float | None:
    return _age_s(exception.at_ns, now_ns) if exception else None


def _age_s(then_ns: int, now_ns: int) -> float | None:
    """Age of a moment; None for one that never was."""
    return max(0, now_ns - then_ns) / 1e9 if then_ns else None
