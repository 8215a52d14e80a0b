"""What report.json says of the GPU of a rank."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from hangwatch.model.calls import Site
from hangwatch.model.frames import innermost_user_site, is_user_frame, line_of, program_thread
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import OpState
from hangwatch.model.snapshot import Child, Frame, ProcessState, RankSnapshot, ThreadStack
from hangwatch.model.verdict import Verdict, Wait
from hangwatch.report import schema
from hangwatch.report.calls import CULPRITS
from hangwatch.report.groups import Groups
from hangwatch.report.schema import Gpu
from hangwatch.report.sites import group_label, site_content


def gpu_content(gpu: GpuState | None) -> Gpu | None:
    """Plain values, None where no GPU is known. Units as the names say, utilization 0 to 1."""
    if gpu is None:
        return None
    return {
        "uuid": gpu.uuid,
        "parent": gpu.parent or None,
        "index": gpu.index,
        "name": gpu.name,
        "health": gpu.health.value,
        "ranks": list(gpu.ranks),
        "assumed": gpu.assumed,
        "utilization": gpu.utilization,
        "memory_used_bytes": gpu.memory_used_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "temperature_c": gpu.temperature_c,
        "power_w": gpu.power_w,
        "sm_clock_hz": gpu.sm_clock_hz,
        "memory_clock_hz": gpu.memory_clock_hz,
        "throttle": None if gpu.throttle is None else list(gpu.throttle),
        "ecc_corrected": gpu.ecc_corrected,
        "ecc_uncorrected": gpu.ecc_uncorrected,
        "ecc_uncorrected_new": gpu.ecc_uncorrected_new,
        "remapped_rows": gpu.remapped_rows,
        "nvlink_errors": gpu.nvlink_errors,
        "xids": {str(xid.number): xid.count for xid in gpu.xids},
        "unreadable": list(gpu.unreadable),
    }


class Stacks:
    """Stacks by content: many ranks have few different ones."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._frames: dict[str, list[schema.StackFrame]] = {}
        self._owners: defaultdict[str, set[int]] = defaultdict(set)

    def add(self, frames: Sequence[Frame], rank: int) -> str | None:
        """Note that rank has this stack; returns its id, None for an empty one."""
        if not frames:
            return None
        text = "\n".join(f"{frame.file}:{frame.line}:{frame.function}" for frame in frames)
        name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        if name not in self._frames:
            self._frames[name] = [self._frame(frame) for frame in frames]
        self._owners[name].add(rank)
        return name

    def content(self) -> dict[str, schema.Stack]:
        """Every stack with its ranks."""
        return {
            name: {"frames": frames, "ranks": sorted(self._owners[name])}
            for name, frames in self._frames.items()
        }

    def _frame(self, frame: Frame) -> schema.StackFrame:
        return {
            "file": frame.file,
            "line": frame.line,
            "function": frame.function,
            "source": line_of(self._sources, frame.file, frame.line),
            "user": is_user_frame(frame),
        }


def rank_content(  # noqa: PLR0913 (what one entry is made of)
    rank: RankSnapshot,
    verdict: Verdict,
    wait: Wait | None,
    stacks: Stacks,
    sources: Mapping[str, str],
    groups: Groups,
    calls: list[schema.Call] | None,
) -> schema.Rank:
    """The entry of one rank; its stacks go to stacks, its groups to groups.

    calls: its last ones, None where they are not kept.
    """
    threads = rank.threads or ()
    main = program_thread(rank)
    site = _rank_site(rank, verdict, wait, sources)
    # The lines around it would be most of a report of ten thousand ranks.
    context = rank.rank in verdict.culprits[:CULPRITS]
    return {
        "rank": rank.rank,
        "node": rank.node,
        "pid": rank.pid,
        "phase": rank.phase.value,
        "process": _process(rank.process),
        "stuck_in": _stuck_in(rank, wait, sources),
        "site": site_content(site, sources, context=context),
        "stack": stacks.add(main.frames, rank.rank) if main else None,
        "threads": [_thread(thread, rank.rank, stacks) for thread in threads],
        "children": [_child(child, rank.rank, stacks) for child in rank.children],
        "exception": {
            "type": rank.exception.type,
            "message": rank.exception.story,
            "site": site_content(rank.exception.site, sources, context=context),
        }
        if rank.exception
        else None,
        "gpu": gpu_content(rank.gpu),
        "recorder": rank.recorder,
        "missing_evidence": list(rank.missing_evidence),
        "groups": [groups.progress(group) for group in rank.groups],
        "calls": calls,
    }


def _rank_site(
    rank: RankSnapshot, verdict: Verdict, wait: Wait | None, sources: Mapping[str, str]
) -> Site | None:
    """Where the rank is in the user's own code, as far as that is known."""
    if wait and wait.site:
        return wait.site
    if rank.rank in verdict.culprits and len(verdict.culprits) == 1:
        return verdict.site
    if rank.exception and rank.exception.site:
        return rank.exception.site
    main = program_thread(rank)
    return innermost_user_site(main.frames if main else (), sources) or rank.in_call_site


def _process(process: ProcessState) -> schema.Process:
    return {
        "alive": process.alive,
        "state": process.state,
        "wchan": process.wchan,
        "tracer_pid": process.tracer_pid,
        "exit_code": process.exit_code,
        "signal": process.signal,
        "oom_killed": process.oom_killed,
        "gone_age_s": process.gone_age_s,
        "terminated_by_launcher": process.terminated_by_launcher,
    }


def _stuck_in(
    rank: RankSnapshot, wait: Wait | None, sources: Mapping[str, str]
) -> schema.BlockedCall | None:
    """The call that the rank is blocked in; None if it is blocked in none."""
    if wait:
        label = group_label(wait.group)
        site = site_content(wait.site, sources, context=False)
        return _blocked(wait.op, label, wait.seq, wait.age_s, site)
    for op in reversed(rank.ops):
        if op.state is OpState.BLOCKED:
            return _blocked(
                op.op,
                group_label(op.group),
                op.seq,
                op.blocked_age_s if op.blocked_age_s is not None else op.issued_age_s,
                site_content(op.site, sources, context=False),
            )
    if rank.in_call:
        site = site_content(rank.in_call_site, sources, context=False)
        return _blocked(rank.in_call, None, 0, rank.in_call_age_s, site)
    return None


def _blocked(
    op: str, group: str | None, seq: int, age_s: float, site: schema.Site | None
) -> schema.BlockedCall:
    return {"op": op, "group": group, "seq": seq, "age_s": round(age_s, 3), "site": site}


def _thread(thread: ThreadStack, rank: int, stacks: Stacks) -> schema.Thread:
    return {
        "name": thread.name,
        "tid": thread.tid,
        "active": thread.active,
        "owns_gil": thread.owns_gil,
        "stack": stacks.add(thread.frames, rank),
    }


def _child(child: Child, rank: int, stacks: Stacks) -> schema.Child:
    return {
        "pid": child.pid,
        "command": child.command,
        "process": _process(child.process),
        "threads": [_thread(thread, rank, stacks) for thread in child.threads],
    }
