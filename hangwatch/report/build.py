"""The content of report.json, schema ``hangwatch.report/1``, made from the evidence.

The types are those of schema.py. What many ranks have in common is written once and referred
to by its key or number: stacks, groups, the lines of calls, and the places that ranks wait in.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar, cast

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.frames import innermost_user_site, is_user_frame, line_of, program_thread
from hangwatch.model.kinds import OpState
from hangwatch.model.report import Evidence, Note
from hangwatch.model.snapshot import Frame, OpRecord, RankSnapshot, ThreadStack
from hangwatch.model.verdict import RootCause, Verdict, Wait
from hangwatch.report import schema
from hangwatch.report.schema import SCHEMA, Report
from hangwatch.report.wording import group_label
from hangwatch.text import fold_ranks

CONTEXT_LINES = 2
"""Lines of source kept on either side of a culprit's line."""
RANKS = 24
"""Ranks whose calls are kept; all ranks of a job that has no more."""
CULPRITS = 8
"""Culprits that have their calls, and the lines around their site, where there are many."""
OF_EACH = 2
"""Ranks that have their calls, of all that wait in the same place."""
CALLS = 24
"""Last calls kept of a rank ..."""
OF_GROUP = 12
"""... and its calls in the group of the verdict, those nearest to the verdict's collective."""
FOR_SHOWN = 16
"""Ranks that a wait lists of all that it is for."""
FOR_BUDGET = 200_000
"""Ranks that the places list together of all that they wait for: half of ten thousand ranks
may wait for the other half, each in a place of its own."""

Entry = TypeVar("Entry")


def build_report(evidence: Evidence) -> Report:
    """Everything that report.json holds; ``verdict`` is the most important one of several."""
    return _Builder(evidence).report()


def notes_content(notes: Iterable[Note]) -> list[schema.Note]:
    """``notes`` of run.json and report.json."""
    return [_entry(schema.Note, note, site=site_content(note.site)) for note in notes]


class _Builder:
    """One report while it is built: the tables so far, and the entries that refer to them."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.job = evidence.job
        self.verdict = evidence.verdicts[0]
        self.sources = evidence.job.sources
        self.towards = next_towards(self.verdict.waits, self.verdict.culprits)
        # Each group and line with its number, which is its index in the report.
        self.groups: dict[GroupKey, int] = {}
        self.furthest: dict[GroupKey, int] = {}
        for rank in self.job.ranks:
            for group in rank.groups:
                self.group_id(group.key)
                known = self.furthest.get(group.key, 0)
                self.furthest[group.key] = max(known, group.enqueued)
        self.sites: dict[Site, int] = {}
        self.frames: dict[str, list[schema.StackFrame]] = {}
        self.owners: defaultdict[str, set[int]] = defaultdict(set)

    def report(self) -> Report:
        evidence, job = self.evidence, self.job
        waits = {wait.rank: wait for wait in reversed(self.verdict.waits)}
        with_calls = self.ranks_with_calls()
        ranks = [
            self.rank(rank, waits.get(rank.rank), with_calls=rank.rank in with_calls)
            for rank in job.ranks
        ]
        places, wait_entries = self.places_and_waits()
        return {
            "schema": SCHEMA,
            "run": {
                "id": evidence.run.run_id,
                "command": list(evidence.run.command),
                "world_size": job.world_size,
                "nodes": sorted({r.node for r in job.ranks if r.node} | set(job.lost_nodes)),
                "restart": job.restart,
                "started_at": evidence.run.started_at,
                "versions": dict(evidence.run.versions),
            },
            "verdict": self.verdict_entry(self.verdict),
            "also": [self.verdict_entry(other) for other in evidence.verdicts[1:]],
            "ranks": ranks,
            "stacks": {
                name: {"frames": frames, "ranks": sorted(self.owners[name])}
                for name, frames in self.frames.items()
            },
            "waits": wait_entries,
            "places": places,
            "groups": [
                _entry(
                    schema.Group,
                    key,
                    label=group_label(key),
                    size=len(key.ranks),
                    ranks=fold_ranks(key.ranks),
                    furthest=self.furthest.get(key),
                )
                for key in self.groups
            ],
            "sites": [_known_site(site, self.sources) for site in self.sites],
            "timeline": [_entry(schema.Moment, moment) for moment in evidence.timeline],
            "environment": dict(evidence.environment),
            "nccl": {"ras": _entry(schema.Ras, evidence.ras) if evidence.ras else None},
            "exit_code": job.exit_code,
            "unseen": list(job.unseen),
            "lost": list(evidence.lost),
            "notes": notes_content(evidence.notes),
        }

    def verdict_entry(self, verdict: Verdict) -> schema.Verdict:
        group, collective = verdict.group, verdict.collective
        return _entry(
            schema.Verdict,
            verdict,
            certainty_of={
                "hang": verdict.certainty_of_hang.value,
                "culprits": verdict.certainty.value,
            },
            cause=verdict.cause and self.cause(verdict.cause),
            group=group and _entry(schema.VerdictGroup, group, name=verdict.group_name),
            collective=collective and _entry(schema.Collective, collective),
            site=self.site(verdict.site, context=True),
            victim_site=self.site(verdict.victim_site, context=True),
            stuck_since=_stuck_since(self.evidence),
            detected_at=self.evidence.detected_at,
            detected_after_s=round(self.evidence.detected_after_s, 3),
            stuck_age_s=round(verdict.stuck_age_s, 3),
        )

    def cause(self, cause: RootCause) -> schema.Cause:
        site, others = self.site(cause.site, context=True), [*map(self.cause, cause.others)]
        return _entry(schema.Cause, cause, site=site, others=others)

    def site(self, site: Site | None, *, context: bool = False) -> schema.Site | None:
        return site_content(site, self.sources, context=context)

    def group_id(self, key: GroupKey) -> int:
        return self.groups.setdefault(key, len(self.groups))

    # --- Ranks ---

    def rank(self, rank: RankSnapshot, wait: Wait | None, *, with_calls: bool) -> schema.Rank:
        main = program_thread(rank)
        # The lines around each site would be most of a report of ten thousand ranks.
        context = rank.rank in self.verdict.culprits[:CULPRITS]
        raised, gpu, stuck = rank.exception or rank.abort, rank.gpu, wait or _blocked(rank)
        return _entry(
            schema.Rank,
            rank,
            process=_entry(schema.Process, rank.process),
            stuck_in=stuck and self.wait_entry(schema.BlockedCall, stuck),
            site=self.site(self.rank_site(rank, wait, main), context=context),
            stack=self.stack(main.frames, rank.rank) if main else None,
            threads=self.threads(rank.threads or (), rank.rank),
            children=[
                _entry(
                    schema.Child,
                    child,
                    process=_entry(schema.Process, child.process),
                    threads=self.threads(child.threads, rank.rank),
                )
                for child in rank.children
            ],
            exception=raised
            and _entry(
                schema.RankException,
                raised,
                message=raised.story,
                site=self.site(raised.site, context=context),
            ),
            gpu=gpu
            and _entry(
                schema.Gpu,
                gpu,
                parent=gpu.parent or None,
                xids={str(xid.number): xid.count for xid in gpu.xids},
            ),
            groups=[
                _entry(
                    schema.GroupProgress,
                    group,
                    id=self.group_id(group.key),
                    desc=group.key.desc,
                    size=len(group.key.ranks),
                )
                for group in rank.groups
            ],
            calls=self.calls(rank.ops) if with_calls else None,
        )

    def rank_site(
        self, rank: RankSnapshot, wait: Wait | None, main: ThreadStack | None
    ) -> Site | None:
        """The line of the user's own code that the rank is at, as far as that is known."""
        if wait and wait.site:
            return wait.site
        if self.verdict.culprits == (rank.rank,):
            return self.verdict.site
        if rank.exception and rank.exception.site:
            return rank.exception.site
        frames = main.frames if main else ()
        return innermost_user_site(frames, self.sources) or rank.in_call_site

    def wait_entry(self, kind: type[Entry], wait: Wait, **others: Any) -> Entry:
        """An entry of a call that a rank waits in, which has others than those of BlockedCall."""
        call = {
            "group": wait.group and group_label(wait.group),
            "age_s": round(wait.age_s, 3),
            "site": self.site(wait.site),
            "for_count": len(wait.waits_for),
        }
        return _entry(kind, wait, **call | others)

    def threads(self, threads: Iterable[ThreadStack], rank: int) -> list[schema.Thread]:
        return [_entry(schema.Thread, t, stack=self.stack(t.frames, rank)) for t in threads]

    def stack(self, frames: Sequence[Frame], rank: int) -> str | None:
        """Note that the rank has this stack; return its key, None for an empty stack."""
        if not frames:
            return None
        text = "\n".join(f"{frame.file}:{frame.line}:{frame.function}" for frame in frames)
        name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        if name not in self.frames:
            self.frames[name] = [
                _entry(
                    schema.StackFrame,
                    frame,
                    source=line_of(self.sources, frame.file, frame.line),
                    user=is_user_frame(frame),
                )
                for frame in frames
            ]
        self.owners[name].add(rank)
        return name

    # --- Calls ---

    def ranks_with_calls(self) -> set[int]:
        """The culprits, and some ranks of each place, those next to a culprit first."""
        if len(self.job.ranks) <= RANKS:
            return {rank.rank for rank in self.job.ranks}
        culprits = set(self.verdict.culprits)
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for wait in self.verdict.waits:
            alike[wait.op, wait.group, wait.seq].append(wait.rank)
        nearest = sorted(
            alike.values(),
            key=lambda ranks: (-sum(self.towards.get(r) in culprits for r in ranks), -len(ranks)),
        )
        chosen = dict.fromkeys(self.verdict.culprits[:CULPRITS])
        for ranks in [*nearest, self.verdict.victims]:
            chosen |= dict.fromkeys(ranks[:OF_EACH])
        return set(list(chosen)[:RANKS])

    def calls(self, ops: Sequence[OpRecord]) -> list[schema.Call]:
        """The last calls of a rank, and those around the verdict's collective, oldest first."""
        last = range(max(0, len(ops) - CALLS), len(ops))
        seq = self.verdict.collective.seq if self.verdict.collective else 0
        of_group = [
            index
            for index, op in enumerate(ops)
            if seq and op.group == self.verdict.group and not op.p2p
        ]
        nearest = sorted(of_group, key=lambda index: abs(ops[index].seq - seq))[:OF_GROUP]
        return [self.call(ops[index]) for index in sorted({*last, *nearest})]

    def call(self, op: OpRecord) -> schema.Call:
        return _entry(
            schema.Call,
            op,
            group=group_label(op.group),
            group_id=self.group_id(op.group),
            peer=op.peer if op.peer >= 0 else None,
            root=op.root if op.root >= 0 else None,
            issued_age_s=round(op.issued_age_s, 6),
            blocked_age_s=None if op.blocked_age_s is None else round(op.blocked_age_s, 6),
            site=op.site and self.sites.setdefault(op.site, len(self.sites)),
        )

    # --- Waits ---

    def places_and_waits(self) -> tuple[list[schema.WaitPoint], list[schema.Wait]]:
        """The places that ranks wait in, and the waits, which refer to them.

        A place is one call, of one group, at one line, for the same ranks. ``for`` lists all of
        these within FOR_BUDGET, then the first FOR_SHOWN; ``for_count`` is their number.
        """
        alike: defaultdict[tuple[object, ...], list[Wait]] = defaultdict(list)
        for wait in self.verdict.waits:
            alike[wait.group, wait.seq, wait.op, wait.site, wait.waits_for].append(wait)
        left = FOR_BUDGET
        places: list[schema.WaitPoint] = []
        place_of: dict[int, int] = {}
        for number, members in enumerate(alike.values()):
            place_of |= dict.fromkeys(map(id, members), number)
            wait = members[0]
            count = len(wait.waits_for)
            shown = count if count <= left else FOR_SHOWN
            left -= min(shown, count)
            places.append(
                self.wait_entry(
                    schema.WaitPoint,
                    replace(wait, age_s=max(other.age_s for other in members)),
                    **{"for": list(wait.waits_for[:shown])},
                    group_id=None if wait.group is None else self.group_id(wait.group),
                    ranks=sorted(other.rank for other in members),
                )
            )
        return places, [self.wait(wait, place_of[id(wait)]) for wait in self.verdict.waits]

    def wait(self, wait: Wait, place: int) -> schema.Wait:
        towards = self.towards.get(wait.rank)
        return self.wait_entry(
            schema.Wait,
            wait,
            **{"for": list(wait.waits_for[:FOR_SHOWN])},
            towards=towards if towards in wait.waits_for else None,
            place=place,
        )


def next_towards(waits: Iterable[Wait], culprits: Iterable[int]) -> dict[int, int]:
    """Rank to the one that it waits for on the shortest way to a culprit.

    Culprits are left out, and ranks from which no wait leads to one. Time is linear in the
    waits and in the ranks that their places wait for: most waits are in the same few places.
    """
    waiting: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for wait in waits:
        waiting[wait.waits_for].append(wait.rank)
    holding: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for missing in waiting:
        for rank in missing:
            holding[rank].append(missing)
    known = set(culprits)
    towards: dict[int, int] = {}
    reached = sorted(known)
    for target in reached:  # grows while it is read: nearest ranks first
        for missing in holding.pop(target, ()):
            for rank in waiting.pop(missing, ()):
                if rank not in known:
                    known.add(rank)
                    towards[rank] = target
                    reached.append(rank)
    return towards


def _blocked(rank: RankSnapshot) -> Wait | None:
    """The call that a rank is blocked in although no rank is known to be missing there."""
    for op in reversed(rank.ops):
        if op.state is OpState.BLOCKED:
            age_s = op.issued_age_s if op.blocked_age_s is None else op.blocked_age_s
            return Wait(rank.rank, op.group, op.seq, op.op, (), age_s, op.site)
    if rank.in_call:
        return Wait(rank.rank, None, 0, rank.in_call, (), rank.in_call_age_s, rank.in_call_site)
    return None


def _entry(kind: type[Entry], value: object, **others: Any) -> Entry:
    """An entry of a report: the fields of ``value`` that the entry's type has, and others."""
    return cast(
        "Entry",
        {
            name: others[name] if name in others else _plain(getattr(value, name))
            for name in kind.__annotations__
        },
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def site_content(
    site: Site | None,
    sources: Mapping[str, str] = MappingProxyType({}),
    *,
    context: bool = False,
) -> schema.Site | None:
    """A line of code, None for none. context: with the lines around it."""
    return _known_site(site, sources, context=context) if site else None


def _known_site(site: Site, sources: Mapping[str, str], *, context: bool = False) -> schema.Site:
    """A line of code, and the lines around it where its file is at hand and context is wanted."""
    content: schema.Site = {
        "file": site.file,
        "line": site.line,
        "function": site.function,
        "source": site.source or line_of(sources, site.file, site.line),
    }
    if site.call:
        inner = site.call.inner or None
        content["call"] = _entry(schema.PackageCall, site.call, inner=inner)
    if context:
        lines = sources.get(site.file, "").splitlines()
        first = max(1, site.line - CONTEXT_LINES)
        around = lines[first - 1 : site.line + CONTEXT_LINES]
        known = 0 < site.line <= len(lines)
        content["context"] = {"first": first, "lines": around} if known else None
    return content


def _stuck_since(evidence: Evidence) -> str | None:
    try:
        at = datetime.fromisoformat(evidence.detected_at)
        at -= timedelta(seconds=evidence.detected_after_s)
    except (ValueError, OverflowError):
        return None
    return at.isoformat(timespec="milliseconds")
