"""What the post-mortem page shows, before a browser sees it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from incident import EVIDENCE, STALLED, TRAIN, VERDICT, WORLD
from snapshots import blocked, op, rank, site

from hangwatch.efficiency.habits import Finding, note_of
from hangwatch.errors import ReportError
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.gpu import GpuState, Xid
from hangwatch.model.kinds import Certainty, Cost, Kind, What
from hangwatch.model.snapshot import GroupProgress, JobSnapshot, RankSnapshot, ThreadStack
from hangwatch.model.verdict import OK, RootCause, Wait
from hangwatch.report.build import build_report
from hangwatch.report.directories import open_run
from hangwatch.report.files import load_incident, write_incident
from hangwatch.report.html import render_page
from hangwatch.report.html.graph import MOST_NODES
from hangwatch.report.html.incident import Page, page_of
from hangwatch.report.html.lanes import Axis
from hangwatch.report.html.nodes import machines
from hangwatch.report.html.progress import MOST_ROWS, progress
from hangwatch.report.wording import RankSet
from hangwatch.text import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangwatch.report.html.lanes import Lane
    from hangwatch.report.html.stacks import Branch

GPU = GpuState(
    "GPU-1",
    1,
    "NVIDIA H200",
    utilization=0.97,
    memory_used_bytes=90 << 30,
    memory_total_bytes=141 << 30,
    temperature_c=60,
    power_w=412.4,
    sm_clock_hz=1.98e9,
    throttle=(),
    ecc_uncorrected=0,
)


def page(verdict: Any = VERDICT, *ranks: RankSnapshot, **fields: Any) -> Page:
    """The page of the incident, with these ranks in place of its own."""
    job = JobSnapshot(len(ranks), ranks) if ranks else EVIDENCE.job
    return page_of(build_report(replace(EVIDENCE, job=job, verdicts=(verdict,), **fields)))


def waiting(*waits: Wait, **fields: Any) -> Any:
    """The verdict where these wait."""
    victims = tuple(wait.rank for wait in waits)
    return replace(VERDICT, waits=waits, victims=victims, **fields)


def branches(found: tuple[Branch, ...]) -> Iterator[Branch]:
    for branch in found:
        yield branch
        yield from branches(branch.children)


# --- Advice -----------------------------------------------------------------------


def told(*advice: str) -> Page:
    report = build_report(EVIDENCE)
    report["verdict"]["advice"] = list(advice)
    return page_of(report)


def test_a_page_that_advice_ends_in_is_a_link_and_code_is_code() -> None:
    text = "Move `gather` out. https://docs.pytorch.org/docs/stable/fsdp.html"
    (advice,) = told(text).advice
    assert advice.parts == ("Move ", "gather", " out.")
    assert advice.link == "https://docs.pytorch.org/docs/stable/fsdp.html"
    advised = replace(EVIDENCE, verdicts=(replace(VERDICT, advice=(text,)),))
    assert ">docs.pytorch.org/docs/stable/fsdp.html</a>" in render_page(build_report(advised))


@pytest.mark.parametrize(
    "end", ["javascript:alert(1)", 'https://a.org/"onclick="x', "http://a.org"]
)
def test_nothing_else_that_advice_ends_in_is_a_link(end: str) -> None:
    (advice,) = told(f"See {end}").advice
    assert (advice.parts, advice.link) == ((f"See {end}",), "")


def test_costly_mistakes_have_a_part_of_their_own_with_a_link() -> None:
    note = note_of(Finding(Cost.SYNC_EACH_BATCH, (0, 1), Site("/home/ada/a<b>.py", 7, "f"), 4, 90))
    report: Any = build_report(replace(EVIDENCE, notes=(note,)))
    ((what, advice),) = page_of(report).notes
    assert "about 4 times for each of 90 optimizer steps" in what
    assert "(a<b>.py:7)" in what
    assert advice.parts[1] == "with model.no_sync():"
    assert advice.link.endswith("DistributedDataParallel.no_sync")
    shown = render_page(report)
    assert 'href="#notes"' in shown
    assert "a&lt;b&gt;.py:7" in shown
    assert 'id="notes"' not in render_page(build_report(EVIDENCE))


# --- Top ------------------------------------------------------------------------


def test_the_top_says_what_where_and_what_to_do() -> None:
    found = page()
    assert (found.certainty, found.tone) == ("likely: all evidence points there", "bad")
    assert tuple("`".join(advice.parts) for advice in found.advice) == VERDICT.advice
    culprit, others = found.codes
    assert (culprit.title, culprit.site["file"]) == ("Where rank 2 is", TRAIN)
    html = render_page(build_report(EVIDENCE))
    assert f"<strong>HANG</strong> <span>{found.certainty}</span>" in html
    assert f'<h1 id="headline">{VERDICT.headline}</h1>' in html
    assert re.findall(r'<span class="line here"><span class="no">(\d+)', html) == ["4", "9"]
    assert others.title == "Where the others wait"
    facts = dict(found.facts)
    assert facts["stuck since"] == "2026-01-02 03:03:57 UTC"
    assert (facts["culprit"], facts["waiting"]) == ("rank 2", "3 of 4 ranks")


def test_why_it_came_to_it_is_told_with_its_line() -> None:
    seen = ("Rank 2: x.",)
    other = RootCause(What.UNEVEN_LOOP, Certainty.POSSIBLE, site(30), "It ended: `for`.", seen)
    why = "It left by `break`."
    cause = RootCause(What.EARLY_EXIT, Certainty.LIKELY, site(31), why, seen, (other,))
    found = page(replace(VERDICT, cause=cause))
    assert found.causes == (
        ("Why (likely) It left by ", "break", "."),
        ("Or (possible) It ended: ", "for", "."),
        ("Rank 2: x.",),
    )
    assert (found.codes[-1].title, found.codes[-1].site["line"]) == ("Why (likely)", 31)
    assert page(replace(VERDICT, cause=replace(cause, evidence=()))).causes == ()


def test_code_in_an_explanation_is_told_from_words() -> None:
    found = page(replace(VERDICT, explanation="It is in `a = 1`, and `b`."))
    assert found.explanation == ("It is in ", "a = 1", ", and ", "b", ".")


def test_the_text_for_a_bug_report_has_what_a_maintainer_asks_for() -> None:
    text = page().evidence
    for wanted in (
        VERDICT.headline,
        "command: torchrun train.py",
        "versions: torch 2.13.0",
        "environment: NCCL_DEBUG=INFO",
        "rank 2, worker 5002, innermost frame first:",
        f"  {TRAIN}:4 __getitem__",
    ):
        assert wanted in text


# --- Who waits for whom ------------------------------------------------------------


def test_culprits_stand_left_of_those_that_wait_for_them() -> None:
    graph = page().graph
    assert graph is not None
    culprit, victims = graph.nodes
    assert (culprit.kind, culprit.ranks.text) == ("culprit", "rank 2")
    assert (victims.kind, victims.ranks.text) == ("victim", "ranks 0, 1, 3")
    assert victims.lines == ("all_reduce #41 of default_pg", "8.3 s at train.py:9")
    assert victims.x > culprit.x + graph.node_width
    assert [edge.direct for edge in graph.edges] == [True]
    assert "ranks 0, 1, 3 (victim)" in graph.sentences[1]
    assert graph.sentences[1].endswith("waits for rank 2")


def test_a_cascade_has_a_column_for_each_hop() -> None:
    chain = waiting(*(Wait(n, WORLD, n, "recv", (n + 1,), 1.0) for n in (1, 0)))
    graph = page(chain).graph
    assert graph is not None
    assert [node.ranks.text for node in sorted(graph.nodes, key=lambda n: n.x)] == [
        "rank 2",
        "rank 1",
        "rank 0",
    ]


def test_a_rank_that_is_waited_for_and_does_nothing_stands_out() -> None:
    graph = page(waiting(Wait(0, WORLD, 1, "all_reduce", (2, 3), 1.0))).graph
    assert graph is not None
    assert {(node.kind, node.ranks.text) for node in graph.nodes} == {
        ("culprit", "rank 2"),
        ("victim", "rank 0"),
        ("other", "rank 3"),
    }


def test_where_all_are_in_one_collective_arrows_point_at_who_does_not_fit() -> None:
    waits = [Wait(n, WORLD, 5, "broadcast" if n == 2 else "all_reduce", (), 1.0) for n in range(4)]
    graph = page(waiting(*waits, kind=Kind.OP_MISMATCH)).graph
    assert graph is not None
    assert len(graph.edges) == 1


@pytest.mark.parametrize("groups", [1, 8, 5_000])
def test_however_many_wait_there_are_few_nodes(groups: int) -> None:
    waits = [
        Wait(n, GroupKey((n, n + 1), "dp" if n % 2 else ""), n % 7, "all_reduce", (2,), 1.0)
        for n in range(5, 5 + groups)
    ]
    graph = page(waiting(*waits)).graph
    assert graph is not None
    assert len(graph.nodes) <= MOST_NODES + 2
    assert sum(node.ranks.count for node in graph.nodes) == groups + 1
    assert bool(graph.note) == (groups > MOST_NODES)


# --- The last calls ----------------------------------------------------------------

DP = GroupKey((0, 1, 2), "dp")


def lanes(*ranks: RankSnapshot) -> dict[str, Lane]:
    """The lanes of the first panel by rank, where ranks 0 and 1 wait for 2 in #3."""
    verdict = waiting(*(Wait(n, DP, 3, "all_reduce", (2,), 4.0, site(20)) for n in (0, 1)))
    (panel,) = page(replace(verdict, group=DP), *ranks).panels
    assert panel.title == "dp, ranks 0-2"
    return {lane.rank.text: lane for lane in panel.lanes}


def calls(number: int, last: int, *, stuck: bool) -> RankSnapshot:
    """A rank that issued collectives 1 to last, one a second, the last 4 s ago."""
    ops = [op(DP, n, age=7.0 - n + number / 100) for n in range(1, last + 1)]
    if stuck:
        ops[-1] = blocked(DP, last, age=7.0 - last + number / 100)
    return rank(number, DP, *ops)


def test_the_hole_is_where_the_others_came() -> None:
    found = lanes(calls(0, 3, stuck=True), calls(1, 3, stuck=True), calls(2, 2, stuck=False))
    missing, waits = found["rank 2"], found["rank 0"]
    assert missing.culprit
    assert missing.hole is not None
    assert missing.hole == pytest.approx(waits.marks[-1].x, abs=10.0)
    assert missing.label == "no all_reduce #3"
    assert missing.waits_from is None
    assert waits.hole is None
    assert waits.waits_from == waits.marks[-1].x
    assert waits.label == "all_reduce #3, 4.0 s"
    assert [mark.x for mark in waits.marks] == sorted(mark.x for mark in waits.marks)


def test_what_only_one_rank_issued_is_marked() -> None:
    other = calls(2, 3, stuck=True)
    other = replace(other, ops=(*other.ops[:2], replace(other.ops[2], op="broadcast")))
    found = lanes(calls(0, 3, stuck=True), calls(1, 3, stuck=True), other)
    assert [mark.kind for mark in found["rank 2"].marks] == ["done", "done", "odd"]
    assert {mark.kind for mark in found["rank 0"].marks} == {"done"}


def test_long_pauses_are_cut_out_of_the_axis_and_told() -> None:
    axis = Axis.of([101.0, 100.0, 99.0, 1.0, 0.0], 1.0, 0.0, 60.0)
    assert [cut.text for cut in axis.cuts] == ["98 s"]
    assert [axis.x(age) for age in (101.0, 100.0, 99.0, 1.0, 0.0)] == [0, 10, 20, 50, 60]
    assert axis.x(50.0) == pytest.approx(35.0)
    assert (axis.x(200.0), axis.x(-1.0)) == (0, 60)


def test_calls_at_one_moment_have_an_axis_too() -> None:
    axis = Axis.of([3.0, 3.0], 0.0, 0.0, 60.0)
    assert (axis.x(3.0), axis.cuts) == (0.0, ())


# --- How far each has come -----------------------------------------------------------


def behind(number: int, *enqueued: int) -> RankSnapshot:
    """A rank with so many collectives in the group of all, and in one of two."""
    pair = GroupKey((number // 2 * 2, number // 2 * 2 + 1), "tp")
    keys = (GroupKey(tuple(range(200)), "default_pg"), pair)
    return replace(
        rank(number),
        groups=tuple(
            GroupProgress(key, str(n), count, -1)
            for n, (key, count) in enumerate(zip(keys, enqueued, strict=False))
        ),
    )


def report_of(*ranks: RankSnapshot) -> Any:
    verdict = replace(VERDICT, waits=(), group=None)
    return build_report(replace(EVIDENCE, job=JobSnapshot(len(ranks), ranks), verdicts=(verdict,)))


def test_each_rank_of_a_small_job_has_a_row() -> None:
    found = progress(report_of(behind(0, 9, 3), behind(1, 9, 3), behind(2, 8, 5), behind(3, 9, 7)))
    assert found is not None
    assert found.columns == ("default_pg", "tp (0, 1)", "tp (2, 3)")
    assert [row.ranks.text for row in found.rows] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    culprit = found.rows[2]
    assert culprit.culprit
    assert [(cell.text, cell.behind, cell.level) for cell in culprit.cells] == [
        ("8", "-1", 1),
        ("", "", -1),
        ("5", "-2", 2),
    ]


def test_ranks_of_a_large_job_are_folded_to_what_they_have_alike() -> None:
    ranks = [behind(n, 8 if n == 2 else 9, 100 + n // 2) for n in range(200)]
    found = progress(report_of(*ranks))
    assert found is not None
    assert found.columns == ("default_pg, 200 ranks", "tp, 2 ranks")
    assert [(row.ranks.count, row.culprit) for row in found.rows] == [(1, True), (199, False)]
    assert [cell.text for cell in found.rows[1].cells] == ["9", "100-199"]
    assert found.note == "200 ranks have 2 different positions."


def test_standings_without_end_have_an_end() -> None:
    found = progress(report_of(*(behind(n, n) for n in range(1, 200))))
    assert found is not None
    assert len(found.rows) == MOST_ROWS
    assert "159 ranks are not" in found.note


# --- Stacks, nodes, GPUs ---------------------------------------------------------------


def test_stacks_are_one_tree_that_parts_where_ranks_do() -> None:
    stacks = page().stacks
    assert stacks is not None
    (root,) = stacks.roots
    assert root.ranks.text == "ranks 0-3"
    assert not root.culprit
    assert root.leads
    assert [line.function for run in root.runs for line in run] == ["<module>"]
    culprit, others = root.children
    assert (culprit.ranks.text, culprit.culprit) == ("rank 2", True)
    assert others.ranks.text == "ranks 0, 1, 3"
    assert [[line.user for line in run] for run in others.runs] == [[True], [False]]
    assert others.runs[0][0].source == "loss.backward()"


def test_the_stack_of_a_worker_is_shown_beside() -> None:
    stacks = page().stacks
    assert stacks is not None
    (other,) = stacks.others
    assert (other.name, other.ranks.text) == ("worker 5002 python train.py", "rank 2")


def test_ten_thousand_different_stacks_are_not_all_shown() -> None:
    frames = [replace(EVIDENCE.job.ranks[0], rank=n) for n in range(300)]
    many = []
    for n, one in enumerate(frames):
        (thread,) = one.threads or ()
        deep = replace(thread, frames=(replace(thread.frames[0], line=n + 1), *thread.frames[1:]))
        many.append(replace(one, threads=(deep,)))
    stacks = page(VERDICT, *many).stacks
    assert stacks is not None
    assert len(list(branches(stacks.roots))) < 50
    assert "260 ranks are not" in stacks.note


def test_nodes_of_which_nothing_is_to_tell_are_one_row() -> None:
    ranks = [replace(rank(n), node=f"n{n // 8}") for n in range(80)]
    found = machines(report_of(*ranks))
    culprit, others = found.nodes
    assert (culprit.names, culprit.culprit) == ("n0", True)
    assert others.names == "9 nodes with 8 ranks each: n1, n2, n3, ..."
    assert others.ranks.text == "ranks 8-79"


def test_how_a_process_ended_is_told() -> None:
    killed = replace(rank(1).process, alive=False, signal=9, gone_age_s=3.25)
    found = machines(report_of(rank(0), replace(rank(1), process=killed)))
    assert [process.state for process in found.processes] == [
        "ended by SIGKILL, 3.2 s before the verdict"
    ]


def test_gpus_that_stand_out_come_first_and_what_is_unknown_is_empty() -> None:
    broken = replace(GPU, xids=(Xid(79),), throttle=("hw_slowdown",))
    gpus = (GPU, broken, GPU, GpuState("GPU-3", 3))
    ranks = tuple(replace(one, gpu=gpu) for one, gpu in zip(EVIDENCE.job.ranks, gpus, strict=True))
    report = build_report(replace(EVIDENCE, job=replace(EVIDENCE.job, ranks=ranks)))
    culprit, faulty, *_, unknown = machines(report).gpus
    assert (culprit.rank.text, culprit.utilisation) == ("rank 2", "97%")
    assert culprit.memory == "90.0 of 141 GiB"
    assert (faulty.rank.text, faulty.faults) == ("rank 1", "Xid 79 x 1, throttled: hw slowdown")
    assert (unknown.name, unknown.memory, unknown.share) == ("GPU 3", "", None)


def test_of_many_gpus_only_those_that_stand_out_are_shown() -> None:
    odd = {7: replace(GPU, temperature_c=90), 8: replace(GPU, utilization=0.1)}
    found = machines(report_of(*(replace(rank(n), gpu=odd.get(n, GPU)) for n in range(100))))
    assert [gpu.rank.text for gpu in found.gpus] == ["rank 2", "rank 7", "rank 8"]
    assert found.gpus_note == "97 of 100 GPUs are not shown. The median of all is 97% busy."


# --- Names -----------------------------------------------------------------------------


def test_a_set_of_ranks_is_short_to_read_and_whole_to_search() -> None:
    found = RankSet.of(range(0, 100, 2))
    assert found.text == "ranks 0, 2, 4, 6, 8 and 45 more"
    assert found.brief == "50 ranks"
    assert found.spec.count(",") == 49
    assert RankSet.of([7]).text == "rank 7"
    assert RankSet.of([]).text == "no rank"


def test_a_long_name_loses_its_middle() -> None:
    assert shortened("x" * 10_000, 9) == "xxxx…xxxx"
    assert shortened("short") == "short"


# --- Whatever comes in -------------------------------------------------------------------


def test_a_verdict_that_nothing_is_wrong_has_a_page() -> None:
    found = page(OK)
    assert (found.certainty, found.tone, found.graph) == (
        "proved: no future event can undo it",
        "calm",
        None,
    )
    assert "Nothing is stuck." in render_page(build_report(replace(EVIDENCE, verdicts=(OK,))))


def test_a_part_that_cannot_be_drawn_costs_nothing_but_itself() -> None:
    report: Any = build_report(EVIDENCE)
    report["stacks"] = None
    found = page_of(report)
    assert found.stacks is None
    assert found.graph is not None
    assert found.unseen[0].startswith("This page lacks the stacks: TypeError")


@pytest.mark.parametrize("garbage", [{}, {"verdict": 3, "run": 4}, {"verdict": {}, "run": {}}])
def test_what_is_no_report_is_refused(garbage: Any) -> None:
    with pytest.raises(ReportError, match="the page cannot be rendered"):
        render_page(garbage)


def test_the_page_lies_beside_the_report_for_its_owner_alone(tmp_path: Path) -> None:
    path = write_incident(open_run(tmp_path, "r"), EVIDENCE)
    assert "<h1" in (path / "index.html").read_text()
    assert (path / "index.html").stat().st_mode & 0o777 == 0o600


def test_a_page_that_fails_costs_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> str:
        raise RecursionError("too deep")

    monkeypatch.setattr("hangwatch.report.files.render_page", fail)
    lost: list[str] = []
    path = write_incident(open_run(tmp_path, "r"), EVIDENCE, lost=lost)
    assert load_incident(path)[1]["verdict"]["state"] == "hang"
    assert lost == [f"{path / 'index.html'} could not be written: too deep"]
    assert not [file for file in path.iterdir() if "html" in file.name]


def test_the_watchdog_does_not_pay_for_it_before_there_is_an_incident() -> None:
    program = (
        "import sys\n"
        "import hangwatch.watchdog.incident.reporter, hangwatch.report\n"
        "print([m for m in sys.modules if m.startswith(('jinja2', 'hangwatch.report.html.'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)  # noqa: S603 (ours)
    assert done.stdout.decode().strip() == "[]"


def test_a_stack_that_victims_have_as_well_is_not_the_culprits() -> None:
    pump = ThreadStack("pump", 7, active=False, owns_gil=False, frames=STALLED)
    ranks = [
        replace(one, threads=(*(one.threads or ()), pump), children=())
        for one in EVIDENCE.job.ranks
    ]
    stacks = page(VERDICT, *ranks).stacks
    assert stacks is not None
    (other,) = stacks.others
    assert (other.ranks.text, other.culprit) == ("ranks 0-3", False)


def test_that_the_launcher_ended_a_process_is_told() -> None:
    (first, second, *_) = EVIDENCE.job.ranks
    ended = replace(second.process, alive=False, signal=15, terminated_by_launcher=True)
    found = machines(report_of(first, replace(second, process=ended)))
    assert [one.state for one in found.processes] == [
        "ended by SIGTERM, when the launcher ended the job"
    ]
