"""Whatever happens to a job, and to its report, there is a page or a reason why not."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import jsonschema
import report_schema
from evidence import lessened
from slow_evidence import EVIDENCE as SLOW
from truth import simulate
from views import Sight

from hangwatch.diagnosis import diagnose
from hangwatch.errors import ReportError
from hangwatch.model.report import Evidence, RunInfo
from hangwatch.model.snapshot import Thresholds
from hangwatch.report.build import build_report
from hangwatch.report.html import render_page, render_straggler
from hangwatch.report.html.incident import page_of
from hangwatch.report.html.lanes import LEFT, RIGHT
from hangwatch.report.straggler import build_straggler_report
from hangwatch.report.terminal import format_straggler, format_verdict

JOBS = 120
DAMAGES = 200
WIDEST = 1_190
"""A wider picture would be made smaller on a usual screen."""
GARBAGE: tuple[Any, ...] = (
    None,
    -1,
    1e308,
    "",
    "x" * 999,
    [],
    {},
    [None],
    {"a": 1},
    True,
    "\ud800",
)


@cache
def reports() -> list[Any]:
    """Reports of simulated jobs, seen at any moment, with more or less evidence."""
    found = []
    for number in range(JOBS):
        rng = Random(number)  # noqa: S311 (no secrets)
        job = simulate(rng)
        sight = Sight(rng.choice((8, 40)), flight=rng.random() < 0.7, stacks=rng.random() < 0.7)
        seen = job.seen(rng.random() * (job.quiet_s + 40), sight)
        if rng.random() < 0.3:
            seen = lessened(rng, seen)
        evidence = Evidence(
            RunInfo("r", ("train",), "2026-01-02T03:00:00.000+00:00"),
            seen,
            diagnose(seen, Thresholds(10.0, 300.0)),
            "2026-01-02T03:04:05.500+00:00",
            1.0,
        )
        found.append(json.loads(json.dumps(build_report(evidence))))
    return found


def test_every_report_has_what_its_schema_says() -> None:
    check = jsonschema.Draft202012Validator(report_schema.document(closed=True))
    for report in reports():
        check.validate(report)


def test_every_job_has_a_whole_page() -> None:
    for number, report in enumerate(reports()):
        html = render_page(report)
        assert "This page lacks" not in html, f"job {number}"


def test_everybody_who_waits_or_is_to_blame_is_in_one_node() -> None:
    for number, report in enumerate(reports()):
        graph = page_of(report).graph
        wanted = {wait["rank"] for wait in report["waits"]}
        if graph is None:
            assert not wanted, f"job {number}"
            continue
        shown: Counter[int] = Counter()
        for node in graph.nodes:
            for part in node.ranks.spec.split(","):
                first, _, last = part.partition("-")
                shown.update(range(int(first), int(last or first) + 1))
            assert 0 <= node.x <= graph.width <= WIDEST, f"job {number}"
            assert 0 <= node.y < graph.height, f"job {number}"
        assert max(shown.values()) == 1, f"job {number}"
        assert wanted | set(report["verdict"]["culprits"]) <= set(shown), f"job {number}"
        blamed = sum(node.ranks.count for node in graph.nodes if node.kind == "culprit")
        assert blamed == len(report["verdict"]["culprits"]), f"job {number}"


def test_marks_are_in_the_order_of_time_and_no_victim_waits_in_a_hole() -> None:
    holes = 0
    for number, report in enumerate(reports()):
        for panel in page_of(report).panels:
            for lane in panel.lanes:
                at = [mark.x for mark in lane.marks]
                assert at == sorted(at), f"job {number}"
                assert all(LEFT <= x <= RIGHT for x in at), f"job {number}"
                assert lane.hole is None or lane.waits_from is None or lane.culprit, f"job {number}"
                holes += lane.hole is not None
    assert holes > JOBS / 10


def test_a_damaged_report_is_drawn_or_refused() -> None:
    refused = 0
    for number in range(DAMAGES):
        rng = Random(number)  # noqa: S311 (no secrets)
        report = json.loads(json.dumps(rng.choice(reports())))
        for _ in range(rng.randint(1, 3)):
            damage(report, rng)
        try:
            assert render_page(report).endswith("</html>"), f"damage {number}"
        except ReportError:
            refused += 1
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            list(format_verdict(report))
    assert refused < DAMAGES


def test_a_damaged_straggler_is_drawn_or_refused() -> None:
    refused = 0
    whole = json.dumps(build_straggler_report(SLOW))
    for number in range(DAMAGES):
        rng = Random(number)  # noqa: S311 (no secrets)
        report = json.loads(whole)
        for _ in range(rng.randint(1, 3)):
            damage(report, rng)
        try:
            assert render_straggler(report).endswith("</html>"), f"damage {number}"
        except ReportError:
            refused += 1
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            list(format_straggler(report))
    assert refused < DAMAGES


def damage(value: Any, rng: Random) -> None:
    """Remove or replace something somewhere in it."""
    while isinstance(value, (dict, list)) and value:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        if not isinstance(value[key], (dict, list)) or not value[key] or rng.random() < 0.2:
            if isinstance(value, dict) and rng.random() < 0.3:
                del value[key]
            else:
                value[key] = rng.choice(GARBAGE)
            return
        value = value[key]
