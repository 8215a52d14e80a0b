"""What a picture of a run shows: from pages, the watchdog's state, and the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import made_pages
import pytest
import slow_evidence
from incident import EVIDENCE
from incident import rank as snapshot
from made_hello import facts

from hangwatch.commands import runs
from hangwatch.commands.top.picture import RunView
from hangwatch.commands.top.rows import Row, Trouble
from hangwatch.efficiency.straggler_watch import SavedWatch
from hangwatch.evidence.processes import read_stat
from hangwatch.model import codec
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import ExceptionRecord
from hangwatch.model.report import RunInfo
from hangwatch.report.build import build_report
from hangwatch.report.files import write_incident, write_straggler
from hangwatch.report.runs import write_run
from hangwatch.watchdog import state

if TYPE_CHECKING:
    from pathlib import Path

    from hangwatch.model.page import RankPage
    from hangwatch.model.report import Straggler

SECOND = 10**9
TRUNCATED = 100


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a page and the look at it."""
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def own_start() -> int:
    stat = read_stat(os.getpid())
    assert stat is not None
    return stat.start_ticks


def page(rank: int, **changes: Any) -> RankPage:
    """Of a rank that lives, whose process is ours."""
    return made_pages.page(rank, **{"start_ticks": own_start(), **changes})


def picture(run_dir: Path, **changes: Any) -> Any:
    with RunView(runs.describe(run_dir), **{"now_ns": time.monotonic_ns, **changes}) as view:
        return view.picture()


def rows(run_dir: Path) -> dict[int, Row]:
    return {row.ranks[0]: row for row in picture(run_dir).rows}


def blocked(since_s: float, **changes: Any) -> dict[str, Any]:
    """The page of a rank that has been blocked in an all_reduce for so long."""
    then_ns = time.monotonic_ns() - int(since_s * SECOND)
    event = made_pages.event(4, OpState.BLOCKED, issued_ns=then_ns, blocked_ns=then_ns, **changes)
    group = made_pages.group(4, completed=3, left=3, changed_ns=then_ns)
    return {"groups": (group,), "events": (event,)}


def test_before_a_rank_has_come_it_says_so(run_dir: Path) -> None:
    assert picture(run_dir).state == "no ranks yet"


def test_a_rank_that_waits_is_shown_with_what_and_where(run_dir: Path) -> None:
    made_pages.write(run_dir, page(0, **blocked(9.0)))
    made_pages.write(run_dir, page(1))
    row = rows(run_dir)[0]
    assert (row.does, row.group, row.site) == ("all_reduce #4", "default_pg", made_pages.SITE)
    assert row.trouble is Trouble.WAITS
    assert row.waits_s == pytest.approx(9.0, abs=1.0)
    assert row.last == ("default_pg #4",)


def test_a_rank_behind_that_waits_for_nothing_is_late(run_dir: Path) -> None:
    made_pages.write(run_dir, page(0, **blocked(9.0)))
    quiet = made_pages.group(1, changed_ns=time.monotonic_ns() - 8 * SECOND)
    made_pages.write(run_dir, page(1, groups=(quiet,)))
    row = rows(run_dir)[1]
    assert (row.trouble, row.behind, row.behind_in) == (Trouble.LATE, 3, "default_pg")
    shown = picture(run_dir)
    assert shown.state == "waiting"
    assert shown.summary.startswith("1 rank of 2 here for 9.")
    assert shown.summary.endswith("; 1 rank late")


def test_a_short_wait_is_nothing_to_look_at(run_dir: Path) -> None:
    made_pages.write(run_dir, page(0, **blocked(0.3)))
    assert rows(run_dir)[0].trouble is Trouble.NONE


def test_point_to_point_calls_name_their_peer(run_dir: Path) -> None:
    call = {"op": "recv", "wire": "recv", "p2p": True, "peer": 3}
    made_pages.write(run_dir, page(0, **blocked(5.0, **call)))
    assert rows(run_dir)[0].does == "recv from rank 3"


def test_setting_up_counts_as_waiting(run_dir: Path) -> None:
    then_ns = time.monotonic_ns() - 7 * SECOND
    entered = {"in_call": "new_group", "in_call_ns": then_ns, "in_call_site": made_pages.SITE}
    made_pages.write(run_dir, page(0, groups=(), phase_ns=then_ns, **entered))
    row = rows(run_dir)[0]
    assert (row.does, row.site, row.group) == ("new_group", made_pages.SITE, "")


def test_what_cpp_has_issued_is_named_by_its_number(run_dir: Path) -> None:
    then_ns = time.monotonic_ns() - 7 * SECOND
    group = made_pages.group(9, completed=7, changed_ns=then_ns)
    made_pages.write(run_dir, page(0, groups=(group,), pending_since_ns=then_ns))
    row = rows(run_dir)[0]
    assert (row.does, row.group) == ("collective #8", "default_pg")


@pytest.mark.parametrize(
    ("changes", "does", "trouble"),
    [
        ({"phase": Phase.INIT}, "init", Trouble.NONE),
        ({"phase": Phase.EXITED}, "exited", Trouble.NONE),
        (
            {"phase": Phase.RAISED, "exception": ExceptionRecord("my.BadBatch", "x")},
            "raised BadBatch",
            Trouble.ODD,
        ),
        ({"start_ticks": 7}, "gone", Trouble.ODD),
        ({"disarmed": "too many errors"}, "no longer recorded", Trouble.ODD),
    ],
)
def test_the_phase_of_a_rank(
    run_dir: Path, changes: dict[str, Any], does: str, trouble: Trouble
) -> None:
    made_pages.write(run_dir, page(0, **changes))
    row = rows(run_dir)[0]
    assert (row.does, row.trouble) == (does, trouble)


def test_a_stopped_rank_is_odd(run_dir: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            stat = read_stat(process.pid)
            assert stat is not None
            changes = {"pid": process.pid, "start_ticks": stat.start_ticks}
            made_pages.write(run_dir, page(0, **changes, **blocked(5.0)))
            row = rows(run_dir)[0]
            assert (row.does, row.trouble) == ("stopped", Trouble.ODD)
        finally:
            process.kill()


def test_the_rate_is_that_of_the_last_seconds(run_dir: Path) -> None:
    clock = [time.monotonic_ns()]
    seen = []
    with RunView(runs.describe(run_dir), now_ns=lambda: clock[0]) as view:
        for count in (100, 110, 120, 300, 300, 300, 300, 300, 300, 300):
            made_pages.write(run_dir, page(0, groups=(made_pages.group(count),)))
            seen.append(view.picture().rows[0].rate)
            clock[0] += SECOND
    assert seen[:3] == [None, 10.0, 10.0]
    assert seen[-1] == 0.0


def test_the_newest_start_of_the_job_is_shown(run_dir: Path) -> None:
    made_pages.write(run_dir, page(0, start_ticks=5))
    made_pages.write(run_dir, page(0, restart=1, groups=(made_pages.group(77),)))
    (row,) = picture(run_dir).rows
    assert row.last == ("default_pg #77",)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\0" * 65536, os.urandom(4096)])
def test_garbage_for_a_page_is_passed_over(run_dir: Path, content: bytes) -> None:
    made_pages.write(run_dir, page(0))
    (run_dir / "r0-1-1.page").write_bytes(content)
    assert [row.ranks for row in picture(run_dir).rows] == [(0,)]


def test_a_page_that_is_cut_short_while_it_is_shown_is_passed_over(run_dir: Path) -> None:
    path = made_pages.write(run_dir, page(0))
    with RunView(runs.describe(run_dir)) as view:
        assert view.picture().rows
        os.truncate(path, TRUNCATED)
        assert view.picture().rows == ()


def test_root_may_look_at_the_run_of_another_user(run_dir: Path) -> None:
    path = made_pages.write(run_dir, page(0))
    other = 65534 if os.geteuid() == 0 else os.geteuid()
    for owned in (path, run_dir):
        os.chown(owned, other, -1)
    assert len(picture(run_dir).rows) == 1


def test_nothing_in_the_directory_is_written(run_dir: Path) -> None:
    made_pages.write(run_dir, page(0, **blocked(5.0)))
    run_dir.chmod(0o500)
    before = {path.name: path.stat().st_mtime_ns for path in run_dir.iterdir()}
    assert picture(run_dir).rows
    assert {path.name: path.stat().st_mtime_ns for path in run_dir.iterdir()} == before
    run_dir.chmod(0o700)


# --- An incident -----------------------------------------------------------------


def kept(run_dir: Path, where: str, stage: str = "hang", **elsewhere: str) -> None:
    """What the watchdog keeps while there is an incident."""
    state.save(
        run_dir,
        {
            "judge": {
                "incidents": {"stage": stage, "announced": [], "number": 1},
                "told_elsewhere": bool(elsewhere),
            },
            "reporter": {"report": where, "elsewhere": elsewhere or None},
        },
    )


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    """Rank 2 of 4 loads data; rank 3 is on another node."""
    ranks = tuple(
        replace(snapshot(n), node="node-b" if n == 3 else "node-a", pid=4000 + n) for n in range(4)
    )
    evidence = replace(EVIDENCE, job=replace(EVIDENCE.job, ranks=ranks))
    reports = tmp_path / "reports"
    reports.mkdir()
    return write_incident(reports, evidence)


def test_the_verdict_at_hand_is_the_headline(run_dir: Path, incident: Path) -> None:
    made_pages.write(run_dir, page(2))
    kept(run_dir, str(incident))
    shown = picture(run_dir)
    assert (shown.state, shown.alarming) == ("HANG (likely)", True)
    assert shown.summary == EVIDENCE.verdicts[0].headline
    assert shown.report == incident


def test_the_culprit_is_marked_and_placed(run_dir: Path, incident: Path) -> None:
    made_pages.write(run_dir, page(2))
    kept(run_dir, str(incident))
    row = rows(run_dir)[2]
    assert (row.trouble, row.does) == (Trouble.CULPRIT, "data loading")
    assert row.site is not None
    assert row.site.line == 4


def test_ranks_of_other_nodes_come_from_the_report(run_dir: Path, incident: Path) -> None:
    for number in (0, 1, 2):
        made_pages.write(run_dir, page(number))
    kept(run_dir, str(incident))
    shown = picture(run_dir, now=lambda: time.time() + 60)
    (other,) = (row for row in shown.rows if row.node)
    assert (other.ranks, other.node, other.does) == ((3,), "node-b", "all_reduce #41")
    assert other.waits_s is not None
    assert other.waits_s > 60
    assert any("other nodes" in note for note in shown.notes)


def test_a_culprit_on_another_node_is_marked_too(run_dir: Path, incident: Path) -> None:
    made_pages.write(run_dir, page(0))
    kept(run_dir, str(incident))
    row = rows(run_dir)[2]
    assert (row.trouble, row.does, row.behind) == (Trouble.CULPRIT, "data loading", 1)
    assert (row.node, row.behind_in) == ("node-a", "default_pg")


def test_a_verdict_of_another_node_is_told_without_its_report(run_dir: Path) -> None:
    kept(run_dir, "", headline="Rank 9 is stuck.", node="node-b", report="/nowhere/incident-001")
    shown = picture(run_dir)
    assert (shown.state, shown.summary) == ("HANG", "Rank 9 is stuck. (reported by node-b)")


def test_an_incident_that_is_over_is_only_counted(run_dir: Path, incident: Path) -> None:
    facts(report_dir=incident.parent, watch="here:r-1").keep(run_dir)
    made_pages.write(run_dir, page(0))
    kept(run_dir, str(incident), stage="healthy")
    shown = picture(run_dir)
    assert (shown.alarming, shown.report) == (False, None)
    assert any(note.startswith("1 incident before") for note in shown.notes)


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": [{"rank": 0}]},
        {"ranks": "none"},
        {"verdict": {"culprits": 7}},
        {"verdict": []},
        {"ranks": [{"rank": [], "node": 3, "process": None}]},
    ],
)
def test_a_report_that_was_tampered_with_costs_what_it_adds(
    run_dir: Path, incident: Path, change: dict[str, Any]
) -> None:
    content = build_report(EVIDENCE) | change
    (incident / "report.json").write_text(json.dumps(content))
    made_pages.write(run_dir, page(0))
    kept(run_dir, str(incident))
    assert [row.ranks for row in picture(run_dir).rows if not row.node] == [(0,)]


@pytest.mark.parametrize(
    "values",
    [
        *({}, {"judge": 7, "reporter": {}}, {"judge": {"incidents": {"stage": "odd"}}}),
        *({"stragglers": 7}, {"stragglers": {"current": {"ranks": "x"}}}),
    ],
)
def test_an_odd_state_is_a_healthy_run(run_dir: Path, values: dict[str, Any]) -> None:
    state.save(run_dir, values)
    shown = picture(run_dir)
    assert (shown.alarming, shown.slowed) == (False, False)


# --- A straggler -----------------------------------------------------------------


def slowed_by(run_dir: Path, straggler: Straggler) -> None:
    """What the watchdog keeps while there is a straggler."""
    state.save(run_dir, codec.plain({"stragglers": SavedWatch(current=straggler)}))


@pytest.fixture
def slow(run_dir: Path, tmp_path: Path) -> Path:
    """A run of three ranks, of which rank 2 is slow; the directory of its report."""
    for rank in range(3):
        made_pages.write(run_dir, page(rank))
    reports = tmp_path / "reports"
    reports.mkdir()
    facts(report_dir=reports).keep(run_dir)
    slowed_by(run_dir, slow_evidence.STRAGGLER)
    return write_straggler(reports, slow_evidence.EVIDENCE)


def test_a_straggler_is_the_headline_and_marked(run_dir: Path, slow: Path) -> None:
    shown = picture(run_dir)
    assert shown.state == "STRAGGLER (34 % of the time)"
    said = "The other ranks wait for rank 2 again and again, and it for none of them."
    assert shown.summary == said
    assert (shown.alarming, shown.slowed, shown.report) == (False, True, slow)
    by_rank = rows(run_dir)
    assert by_rank[2].trouble is Trouble.CULPRIT
    assert (by_rank[2].does, by_rank[2].site) == ("user code", slow_evidence.LINE)
    assert by_rank[0].trouble is Trouble.NONE


@pytest.mark.usefixtures("slow")
def test_the_report_of_another_straggler_is_not_shown(run_dir: Path) -> None:
    slowed_by(run_dir, replace(slow_evidence.STRAGGLER, ranks=(1, 2)))
    shown = picture(run_dir)
    assert "wait for ranks 1 and 2 again" in shown.summary
    assert shown.report is None


@pytest.mark.parametrize("damage", ["{", '{"schema": "hangwatch.straggler/1"}', "[]"])
def test_a_straggler_is_shown_without_a_report_that_is_damaged(
    run_dir: Path, slow: Path, damage: str
) -> None:
    (slow / "straggler.json").write_text(damage)
    assert picture(run_dir).slowed
    assert picture(run_dir).report is None


@pytest.mark.usefixtures("slow")
def test_a_hang_comes_before_a_straggler(run_dir: Path) -> None:
    kept(run_dir, "")
    assert picture(run_dir).state == "HANG"


# --- The end ---------------------------------------------------------------------


def ending(run_dir: Path) -> str:
    with RunView(runs.describe(run_dir)) as view:
        return view.ending()


def test_how_the_run_ended_comes_from_its_run_file(run_dir: Path, incident: Path) -> None:
    facts(report_dir=incident.parent, watch="here:r-1").keep(run_dir)
    write_run(
        incident.parent,
        RunInfo("r", ("torchrun",), "2026-01-02T03:04:05.000+00:00"),
        watch="here:r-1",
        duration_s=9.0,
        exit_code=75,
    )
    said = f"the run has ended, exit code 75, 1 incident; see hangwatch report {incident.parent}"
    assert ending(run_dir) == said


def test_a_supervisor_that_is_gone_may_leave_ranks_behind(run_dir: Path) -> None:
    facts().keep(run_dir)
    assert ending(run_dir) == "the run has ended; its exit code is not known"
    made_pages.write(run_dir, page(0))
    assert ending(run_dir) == "the supervisor is gone; 1 rank still runs, unwatched"
