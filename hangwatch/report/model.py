"""The content of report.json, schema ``hangwatch.report/1`` (DESIGN 4.3)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from hangwatch.frames import innermost_user_site, is_user_file, line_of
from hangwatch.types import OpState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangwatch.types import (
        Child,
        Evidence,
        Frame,
        GroupKey,
        GroupProgress,
        ProcessState,
        RankSnapshot,
        Site,
        ThreadStack,
        Verdict,
        Wait,
    )

SCHEMA = "hangwatch.report/1"
CONTEXT_LINES = 2
"""Lines of source shown on either side of the culprit's."""


def build_report(evidence: Evidence) -> dict[str, Any]:
    """Everything that report.json holds, as plain values.

    ``verdict`` is the most important one; ``also`` holds the others. Besides
    DESIGN's fields a site has ``context`` (the lines around it, where the
    file's text is known) and a rank its ``threads`` and ``children``, so that
    a stored report prints as it did on the machine that it came from.
    """
    run, job, verdict = evidence.run, evidence.job, evidence.verdicts[0]
    stacks = _Stacks(job.sources)
    waits = {wait.rank: wait for wait in reversed(verdict.waits)}
    ranks = [_rank(rank, verdict, waits.get(rank.rank), stacks, job.sources) for rank in job.ranks]
    return {
        "schema": SCHEMA,
        "run": {
            "id": run.run_id,
            "command": list(run.command),
            "world_size": job.world_size,
            "nodes": sorted({rank.node for rank in job.ranks} | set(job.lost_nodes)),
            "restart": job.restart,
            "started_at": run.started_at,
            "versions": dict(run.versions),
        },
        "verdict": _verdict(verdict, evidence),
        "also": [_verdict(other, evidence) for other in evidence.verdicts[1:]],
        "ranks": ranks,
        "stacks": stacks.content(),
        "waits": [_wait(wait, job.sources) for wait in verdict.waits],
        "timeline": [
            {"at": moment.at, "what": moment.what, "rank": moment.rank}
            for moment in evidence.timeline
        ],
        "environment": dict(evidence.environment),
        "exit_code": job.exit_code,
        "unseen": list(job.unseen),
        "lost": list(evidence.lost),
    }


class _Stacks:
    """Stacks by content: many ranks have few different ones."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._frames: dict[str, list[dict[str, Any]]] = {}
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

    def content(self) -> dict[str, dict[str, Any]]:
        """Every stack with its ranks."""
        return {
            name: {"frames": frames, "ranks": sorted(self._owners[name])}
            for name, frames in self._frames.items()
        }

    def _frame(self, frame: Frame) -> dict[str, Any]:
        return {
            "file": frame.file,
            "line": frame.line,
            "function": frame.function,
            "source": line_of(self._sources, frame.file, frame.line),
            "user": is_user_file(frame.file),
        }


def _verdict(verdict: Verdict, evidence: Evidence) -> dict[str, Any]:
    sources = evidence.job.sources
    found = verdict.collective
    return {
        "state": verdict.state.value,
        "kind": verdict.kind.value if verdict.kind else None,
        "reason": verdict.reason.value,
        "certainty": verdict.certainty.value,
        "culprits": list(verdict.culprits),
        "victims": list(verdict.victims),
        "group": _group(verdict.group, verdict.group_name),
        "collective": {
            "op": found.op,
            "seq": found.seq,
            "dtype": found.dtype,
            "shape": list(found.shape),
        }
        if found
        else None,
        "site": _site(verdict.site, sources),
        "victim_site": _site(verdict.victim_site, sources),
        "headline": verdict.headline,
        "explanation": verdict.explanation,
        "advice": list(verdict.advice),
        "stuck_since": _stuck_since(evidence),
        "detected_at": evidence.detected_at,
        "detected_after_s": round(evidence.detected_after_s, 3),
        "stuck_age_s": round(verdict.stuck_age_s, 3),
    }


def _stuck_since(evidence: Evidence) -> str | None:
    try:
        at = datetime.fromisoformat(evidence.detected_at)
        return (at - timedelta(seconds=evidence.detected_after_s)).isoformat(
            timespec="milliseconds"
        )
    except (ValueError, OverflowError):
        return None


def _group(key: GroupKey | None, name: str) -> dict[str, Any] | None:
    if key is None:
        return None
    return {"name": name, "desc": key.desc, "ranks": list(key.ranks)}


def _rank(
    rank: RankSnapshot,
    verdict: Verdict,
    wait: Wait | None,
    stacks: _Stacks,
    sources: Mapping[str, str],
) -> dict[str, Any]:
    threads = rank.threads or ()
    main = main_thread(threads)
    return {
        "rank": rank.rank,
        "node": rank.node,
        "pid": rank.pid,
        "phase": rank.phase.value,
        "process": _process(rank.process),
        "groups": [_progress(group) for group in rank.groups],
        "stuck_in": _stuck_in(rank, wait, sources),
        "site": _site(_rank_site(rank, verdict, wait, sources), sources),
        "stack": stacks.add(main.frames, rank.rank) if main else None,
        "threads": [_thread(thread, rank.rank, stacks) for thread in threads],
        "children": [_child(child, rank.rank, stacks) for child in rank.children],
        "exception": {
            "type": rank.exception.type,
            "message": rank.exception.message,
            "site": _site(rank.exception.site, sources),
        }
        if rank.exception
        else None,
        "gpu": None,
        "recorder": rank.recorder,
        "missing_evidence": list(rank.missing_evidence),
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
    main = main_thread(rank.threads or ())
    return innermost_user_site(main.frames if main else (), sources) or rank.in_call_site


def main_thread(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """The thread that runs the training loop, None where no stack was taken."""
    for thread in threads:
        if thread.name == "MainThread":
            return thread
    return threads[0] if threads else None


def _process(process: ProcessState) -> dict[str, Any]:
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


def _progress(group: GroupProgress) -> dict[str, Any]:
    return {
        "name": group.name,
        "desc": group.key.desc,
        "size": len(group.key.ranks),
        "enqueued": group.enqueued,
        "started": group.started,
        "completed": group.completed,
        "p2p": group.p2p,
        "alive": group.alive,
    }


def _stuck_in(
    rank: RankSnapshot, wait: Wait | None, sources: Mapping[str, str]
) -> dict[str, Any] | None:
    """The call that the rank is blocked in; None if it is blocked in none."""
    if wait:
        label = group_label(wait.group, rank)
        return _blocked(wait.op, label, wait.seq, wait.age_s, _site(wait.site, sources))
    for op in reversed(rank.ops):
        if op.state is OpState.BLOCKED:
            return _blocked(
                op.op,
                group_label(op.group, rank),
                op.seq,
                op.blocked_age_s if op.blocked_age_s is not None else op.issued_age_s,
                _site(op.site, sources),
            )
    if rank.in_call:
        site = _site(rank.in_call_site, sources)
        return _blocked(rank.in_call, None, 0, rank.in_call_age_s, site)
    return None


def _blocked(
    op: str, group: str | None, seq: int, age_s: float, site: dict[str, Any] | None
) -> dict[str, Any]:
    return {"op": op, "group": group, "seq": seq, "age_s": round(age_s, 3), "site": site}


def group_label(key: GroupKey | None, rank: RankSnapshot | None = None) -> str | None:
    """What a group is called in print: its description, else its name on rank."""
    if key is None:
        return None
    if key.desc and key.desc != "undefined":
        return key.desc
    names = [group.name for group in rank.groups if group.key == key] if rank else []
    return names[0] if names else ""


def _wait(wait: Wait, sources: Mapping[str, str]) -> dict[str, Any]:
    return {
        "rank": wait.rank,
        "group": group_label(wait.group),
        "seq": wait.seq,
        "op": wait.op,
        "for": list(wait.waits_for),
        "age_s": round(wait.age_s, 3),
        "site": _site(wait.site, sources, context=False),
    }


def _thread(thread: ThreadStack, rank: int, stacks: _Stacks) -> dict[str, Any]:
    return {
        "name": thread.name,
        "tid": thread.tid,
        "active": thread.active,
        "owns_gil": thread.owns_gil,
        "stack": stacks.add(thread.frames, rank),
    }


def _child(child: Child, rank: int, stacks: _Stacks) -> dict[str, Any]:
    return {
        "pid": child.pid,
        "command": child.command,
        "process": _process(child.process),
        "threads": [_thread(thread, rank, stacks) for thread in child.threads],
    }


def _site(
    site: Site | None, sources: Mapping[str, str], *, context: bool = True
) -> dict[str, Any] | None:
    if site is None:
        return None
    content: dict[str, Any] = {
        "file": site.file,
        "line": site.line,
        "function": site.function,
        "source": site.source or line_of(sources, site.file, site.line),
    }
    if context:
        content["context"] = _context(sources, site.file, site.line)
    return content


def _context(sources: Mapping[str, str], file: str, line: int) -> dict[str, Any] | None:
    """The lines around a site: ``first`` is the number of the first of them."""
    lines = sources.get(file, "").splitlines()
    if not 0 < line <= len(lines):
        return None
    first = max(1, line - CONTEXT_LINES)
    return {"first": first, "lines": lines[first - 1 : line + CONTEXT_LINES]}
