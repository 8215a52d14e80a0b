"""The content of report.json, schema ``hangwatch.report/1`` (DESIGN 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from hangwatch.model.calls import GroupKey
from hangwatch.model.report import Evidence, RasAnswer
from hangwatch.model.verdict import RootCause, Verdict, Wait
from hangwatch.report import schema
from hangwatch.report.calls import calls_content, chosen_ranks
from hangwatch.report.chains import next_towards
from hangwatch.report.groups import FOR_SHOWN, Groups, Sites, places_content
from hangwatch.report.notes import notes_content
from hangwatch.report.ranks import Stacks, rank_content
from hangwatch.report.schema import SCHEMA, Report
from hangwatch.report.sites import group_label, site_content


def build_report(evidence: Evidence) -> Report:
    """Everything that report.json holds.

    ``verdict`` is the most important one; ``also`` holds the others. Besides
    DESIGN's fields a site has ``context`` (the lines around it, where the
    file's text is known), a rank its ``threads`` and ``children``, so that a
    stored report prints as it did on the machine that it came from, and a wait
    ``towards``: of the ranks that it is for the one that leads to a culprit.
    What many ranks have alike is told once and referred to by number: ``groups``,
    ``sites`` of calls, and ``places`` that ranks wait in, each with all that it
    is for, of which a wait itself lists the first FOR_SHOWN. A few ranks of each
    kind have ``calls``, their last ones (null for the others). ``nccl`` is what NCCL
    says itself: its RAS service, null where there is none.
    """
    run, job, verdict = evidence.run, evidence.job, evidence.verdicts[0]
    stacks = Stacks(job.sources)
    waits = {wait.rank: wait for wait in reversed(verdict.waits)}
    towards = next_towards(verdict.waits, verdict.culprits)
    groups, sites = Groups(job.ranks), Sites(job.sources)
    chosen = chosen_ranks(job.ranks, verdict, towards)
    ranks = [
        rank_content(
            rank,
            verdict,
            waits.get(rank.rank),
            stacks,
            job.sources,
            groups,
            calls_content(rank, verdict, groups, sites) if rank.rank in chosen else None,
        )
        for rank in job.ranks
    ]
    places, places_of = places_content(verdict.waits, groups, job.sources)
    return {
        "schema": SCHEMA,
        "run": {
            "id": run.run_id,
            "command": list(run.command),
            "world_size": job.world_size,
            "nodes": sorted({r.node for r in job.ranks if r.node} | set(job.lost_nodes)),
            "restart": job.restart,
            "started_at": run.started_at,
            "versions": dict(run.versions),
        },
        "verdict": _verdict(verdict, evidence),
        "also": [_verdict(other, evidence) for other in evidence.verdicts[1:]],
        "ranks": ranks,
        "stacks": stacks.content(),
        "waits": [
            _wait(wait, place, towards, job.sources)
            for wait, place in zip(verdict.waits, places_of, strict=True)
        ],
        "places": places,
        "groups": groups.content(),
        "sites": sites.content(),
        "timeline": [
            {"at": moment.at, "what": moment.what, "rank": moment.rank}
            for moment in evidence.timeline
        ],
        "environment": dict(evidence.environment),
        "nccl": {"ras": _ras(evidence.ras)},
        "exit_code": job.exit_code,
        "unseen": list(job.unseen),
        "lost": list(evidence.lost),
        "notes": notes_content(evidence.notes),
    }


def _verdict(verdict: Verdict, evidence: Evidence) -> schema.Verdict:
    sources = evidence.job.sources
    found = verdict.collective
    return {
        "state": verdict.state.value,
        "kind": verdict.kind.value if verdict.kind else None,
        "reason": verdict.reason.value,
        "certainty": verdict.certainty.value,
        "certainty_of": {
            "hang": verdict.certainty_of_hang.value,
            "culprits": verdict.certainty.value,
        },
        "cause": _cause(verdict.cause, sources) if verdict.cause is not None else None,
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
        "site": site_content(verdict.site, sources),
        "victim_site": site_content(verdict.victim_site, sources),
        "headline": verdict.headline,
        "explanation": verdict.explanation,
        "advice": list(verdict.advice),
        "stuck_since": _stuck_since(evidence),
        "detected_at": evidence.detected_at,
        "detected_after_s": round(evidence.detected_after_s, 3),
        "stuck_age_s": round(verdict.stuck_age_s, 3),
    }


def _cause(cause: RootCause, sources: Mapping[str, str]) -> schema.Cause:
    return {
        "what": cause.what.value,
        "certainty": cause.certainty.value,
        "site": site_content(cause.site, sources),
        "why": cause.why,
        "evidence": list(cause.evidence),
        "others": [_cause(other, sources) for other in cause.others],
    }


def _ras(ras: RasAnswer | None) -> schema.Ras | None:
    if ras is None:
        return None
    return {"version": ras.version, "complete": ras.complete, "findings": list(ras.findings)}


def _stuck_since(evidence: Evidence) -> str | None:
    try:
        at = datetime.fromisoformat(evidence.detected_at)
        return (at - timedelta(seconds=evidence.detected_after_s)).isoformat(
            timespec="milliseconds"
        )
    except (ValueError, OverflowError):
        return None


def _group(key: GroupKey | None, name: str) -> schema.VerdictGroup | None:
    if key is None:
        return None
    return {"name": name, "desc": key.desc, "ranks": list(key.ranks)}


def _wait(
    wait: Wait, place: int, towards: Mapping[int, int], sources: Mapping[str, str]
) -> schema.Wait:
    return {
        "rank": wait.rank,
        "group": group_label(wait.group),
        "seq": wait.seq,
        "op": wait.op,
        "for": list(wait.waits_for[:FOR_SHOWN]),
        "for_count": len(wait.waits_for),
        "towards": towards.get(wait.rank) if towards.get(wait.rank) in wait.waits_for else None,
        "age_s": round(wait.age_s, 3),
        "site": site_content(wait.site, sources, context=False),
        "place": place,
    }
