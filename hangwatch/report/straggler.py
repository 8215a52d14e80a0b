"""The content of straggler.json, schema ``hangwatch.straggler/1``, made from the evidence."""

from __future__ import annotations

from collections.abc import Iterable

from hangwatch.model.profile import ThreadShares
from hangwatch.model.report import Straggler, StragglerEvidence, Waits
from hangwatch.report import schema, straggler_schema
from hangwatch.report.build import site_content
from hangwatch.report.straggler_schema import STRAGGLER_SCHEMA, StragglerReport
from hangwatch.report.wording import slow_at, straggler_headline, to_be_faster

MOST_LINES = 20
"""Lines of a thread that are kept, those that take the most time."""


def build_straggler_report(evidence: StragglerEvidence) -> StragglerReport:
    """Everything that straggler.json holds."""
    run, straggler = evidence.run, evidence.straggler
    ranks, why = straggler.ranks, straggler.why
    return {
        "schema": STRAGGLER_SCHEMA,
        "run": {
            "id": run.run_id,
            "command": list(run.command),
            "world_size": evidence.world_size,
            "node": evidence.node,
            "started_at": run.started_at,
            "versions": dict(run.versions),
        },
        "straggler": straggler_content(straggler),
        "site": site_content(why.site, evidence.sources, context=True),
        "waits_at": site_content(why.waits_at, evidence.sources, context=True),
        "headline": straggler_headline(ranks),
        "cause": " ".join(slow_at(ranks[0], why)),
        "advice": to_be_faster(why),
        "detected_at": evidence.detected_at,
        "period_s": round(evidence.period_s, 3) or None,
        "processes": [
            {"rank": rank, "pid": evidence.pids[rank], "node": evidence.node}
            for rank in ranks
            if rank in evidence.pids
        ],
        "compared": {
            "rank": ranks[0],
            "like": why.like if why.like >= 0 else None,
            "threads": [_thread(one) for one in evidence.threads],
            "missing": why.missing or None,
        },
        "waits": _waits(evidence.waits),
    }


def straggler_content(straggler: Straggler) -> schema.Straggler:
    """One of ``stragglers`` of run.json."""
    return {
        "ranks": list(straggler.ranks),
        "fraction": round(straggler.fraction, 3),
        "since_s": round(straggler.since_s, 1),
        "until_s": round(straggler.until_s, 1),
        "reason": straggler.why.reason,
        "site": site_content(straggler.why.site),
    }


def _thread(thread: ThreadShares) -> straggler_schema.ThreadShares:
    longest = sorted(thread.lines, key=lambda one: -max(one.share, one.like_share))[:MOST_LINES]
    return {
        "name": thread.name,
        "lines": [
            {
                "site": site_content(one.site),
                "share": round(one.share, 3),
                "like_share": round(one.like_share, 3),
            }
            for one in thread.lines
            if one in longest
        ],
    }


def _waits(waits: Waits) -> straggler_schema.Waits:
    return {
        "at_s": [round(at_s, 2) for at_s in waits.at_s],
        "held": _digits(waits.held),
        "ranks": [
            {"rank": rank, "works": _digits(rank in awake for awake in waits.awake)}
            for rank in waits.ranks
        ],
    }


def _digits(values: Iterable[bool]) -> str:
    return "".join("1" if value else "0" for value in values)
