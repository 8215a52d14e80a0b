"""The report of a straggler: its content, its page and its files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import report_schema
from slow_evidence import EVIDENCE, LINE, MOMENTS, STRAGGLER, WHY

from hangwatch.errors import ReportError
from hangwatch.model.calls import Site
from hangwatch.model.profile import LineShare, ThreadShares
from hangwatch.model.report import Straggler, StragglerEvidence, Waits, Why
from hangwatch.report.directories import open_run
from hangwatch.report.files import load, load_incident, write_straggler
from hangwatch.report.html import render_straggler
from hangwatch.report.html.straggler import page_of
from hangwatch.report.html.strip import MOST_LANES, strip
from hangwatch.report.straggler import build_straggler_report
from hangwatch.report.straggler_schema import StragglerReport

if TYPE_CHECKING:
    from pathlib import Path


def report(**changes: Any) -> StragglerReport:
    return build_straggler_report(replace(EVIDENCE, **changes))


class TestContent:
    def test_it_is_what_the_schema_says_and_nothing_else(self) -> None:
        schema = report_schema.document(StragglerReport, closed=True)
        check = jsonschema.Draft202012Validator(schema)
        unknown = Straggler((1, 3), 0.1, 0.0, 60.0, Why(missing="stacks are off"))
        for made in (report(), report(straggler=unknown, threads=(), period_s=0.0, pids={})):
            check.validate(json.loads(json.dumps(made)))

    def test_what_it_says(self) -> None:
        made = report()
        assert made["headline"] == (
            "The other ranks wait for rank 2 again and again, and it for none of them."
        )
        assert made["cause"].startswith("Rank 2 is at train.py:4 for 55 % of its time, rank 0 ")
        assert made["site"] is not None
        assert made["site"].get("context") == {"first": 2, "lines": EVIDENCE_LINES[1:]}
        assert made["processes"] == [{"rank": 2, "pid": 102, "node": "node-a"}]

    def test_each_moment_is_a_digit_of_each_rank(self) -> None:
        waits = report()["waits"]
        assert waits["held"] == "00011" * (MOMENTS // 5)
        assert [one["works"][:5] for one in waits["ranks"]] == ["11100", "11100", "11111", "11100"]
        assert len(waits["at_s"]) == MOMENTS


EVIDENCE_LINES = EVIDENCE.sources["/home/ada/train.py"].splitlines()


class TestPage:
    def test_it_shows_who_what_and_where(self) -> None:
        page = page_of(report())
        facts = dict(page.facts)
        assert (facts["culprit"], facts["cost"]) == ("rank 2", "34 % of 90 s")
        assert facts["lost"] == "31 s"
        (code,) = page.codes
        assert (code.title, code.site["line"]) == ("What rank 2 takes longer for", 4)
        (table,) = page.tables
        assert [(row.where, row.shares) for row in table.rows] == [
            ("ada/train.py:4", ((0.55, "55 %"), (0.0, "0 %"))),
            ("ada/train.py:5", ((0.2, "20 %"), (0.2, "20 %"))),
            ("waits for other ranks", ((0.0, "0 %"), (0.6, "60 %"))),
        ]
        html = render_straggler(report())
        assert "<strong>STRAGGLER</strong> <span>34 % of the time; nothing hangs</span>" in html
        assert "--name=&lt;b&gt;" in html

    def test_where_a_worker_is_slow_both_lines_are_shown(self) -> None:
        why = replace(WHY, waits_at=replace(LINE, line=5))
        codes = page_of(report(straggler=replace(STRAGGLER, why=why))).codes
        assert [code.title for code in codes] == [
            "What rank 2 takes longer for",
            "Where rank 2 waits for that",
        ]

    def test_without_profiles_it_says_why(self) -> None:
        straggler = replace(STRAGGLER, why=Why(missing="stacks are off"))
        made = report(straggler=straggler, threads=())
        assert page_of(made).unseen == ("The profiles of the ranks: stacks are off",)
        html = render_straggler(made)
        assert 'id="unseen"' in html
        assert 'id="lines"' not in html

    def test_what_comes_from_the_job_is_shown_as_text(self) -> None:
        bad = "<script>alert(1)</script>\x1b"
        site = Site(bad, 4, bad, bad)
        thread = ThreadShares(bad, (LineShare(site, 0.5, 0.0),))
        why = replace(WHY, site=site, waits_at=site, thread=bad, missing=bad)
        run = replace(EVIDENCE.run, run_id=bad, command=(bad,), versions={bad: bad})
        straggler = replace(STRAGGLER, why=why)
        made = report(straggler=straggler, threads=(thread,), run=run, node=bad, sources={bad: bad})
        html = render_straggler(made)
        assert html.count("<script>") == 1
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b" in html
        assert "\x1b" not in html

    @pytest.mark.parametrize("garbage", [{}, {"straggler": 3}, {"compared": []}])
    def test_what_is_no_report_is_refused(self, garbage: Any) -> None:
        with pytest.raises(ReportError, match="the page cannot be rendered"):
            render_straggler(garbage)


class TestStrip:
    def test_the_last_periods_are_drawn_and_who_waited_in_them(self) -> None:
        picture = strip(report())
        assert picture is not None
        assert [lane.share for lane in picture.lanes] == ["40 %", "40 %", "0 %", "40 %"]
        assert [lane.culprit for lane in picture.lanes] == [False, False, True, False]
        # Twenty periods of half a second, in each of which all wait once; the first one is cut.
        assert picture.held.count("M") == 21
        assert picture.lanes[0].works.count("M") == 20
        assert picture.lanes[2].works.count("M") == 1
        assert picture.period == pytest.approx((picture.right - picture.left) / 20, rel=0.02)
        assert [ago for _, ago in picture.marks] == [f"{age}.0 s ago" for age in (2, 4, 6, 8)]

    def test_of_a_loop_that_is_not_known_half_a_minute(self) -> None:
        picture = strip(report(period_s=0.0))
        assert picture is not None
        assert picture.held.count("M") == 61
        assert picture.period == 0

    def test_nothing_is_drawn_without_moments(self) -> None:
        assert strip(report(waits=Waits((), (), (), ()))) is None
        assert strip(report(waits=Waits((0,), (1.0,), (frozenset(),), (False,)))) is None
        assert 'id="waits"' not in render_straggler(report(waits=Waits((), (), (), ())))

    def test_times_that_make_no_sense_are_drawn_all_the_same(self) -> None:
        made = report()
        made["waits"]["at_s"][-1] = 1e300
        picture = strip(made)
        assert picture is None or len(picture.marks) <= 5

    def test_of_a_job_on_several_nodes_one_is_drawn(self) -> None:
        picture = strip(report(world_size=8))
        assert picture is not None
        assert picture.note == "Of node-a alone."

    def test_of_many_ranks_the_stragglers_and_the_one_beside_them_are_drawn(self) -> None:
        ranks = tuple(range(100))
        waits = replace(EVIDENCE.waits, ranks=ranks)
        slow = Straggler((99,), 0.2, 0.0, 60.0, replace(WHY, like=98))
        picture = strip(report(waits=waits, straggler=slow, world_size=100))
        assert picture is not None
        assert len(picture.lanes) == MOST_LANES
        assert [lane.rank.text for lane in picture.lanes[-2:]] == ["rank 98", "rank 99"]
        assert picture.note == "76 more ranks are in straggler.json."


class TestFiles:
    def test_it_lies_in_a_directory_of_its_own(self, tmp_path: Path) -> None:
        run_dir = open_run(tmp_path, "night-7")
        first = write_straggler(run_dir, EVIDENCE)
        assert write_straggler(run_dir, EVIDENCE).name == "straggler-002"
        assert first.name == "straggler-001"
        assert sorted(file.name for file in first.iterdir()) == [
            "index.html",
            "profiles",
            "straggler.json",
        ]
        assert {file.stat().st_mode & 0o777 for file in first.rglob("*.*")} == {0o600}
        where, content = load(first)
        assert (where, content) == (first, build_straggler_report(EVIDENCE))

    def test_its_profiles_are_as_flame_graphs_take_them(self, tmp_path: Path) -> None:
        path = write_straggler(open_run(tmp_path, "night-7"), EVIDENCE)
        assert (path / "profiles" / "rank-2.folded").read_text().splitlines() == [
            "process 102;thread 102 MainThread;main (/home/ada/train.py:4) 140",
            "process 102;thread 102 MainThread;main (/home/ada/train.py:5) 50",
        ]

    def test_the_same_once_more_takes_its_place(self, tmp_path: Path) -> None:
        run_dir = open_run(tmp_path, "night-7")
        first = write_straggler(run_dir, EVIDENCE)
        longer: StragglerEvidence = replace(EVIDENCE, straggler=replace(STRAGGLER, until_s=400.0))
        assert write_straggler(run_dir, longer, replaced=first) == first
        content = load(run_dir)[1]
        assert content["schema"] == "hangwatch.straggler/1"
        assert content["straggler"]["until_s"] == 400.0

    def test_it_is_no_incident(self, tmp_path: Path) -> None:
        path = write_straggler(open_run(tmp_path, "night-7"), EVIDENCE)
        with pytest.raises(ReportError, match="is a report of a straggler: name an incident"):
            load_incident(path)
