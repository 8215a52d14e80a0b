"""Reports on disk."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from incident import EVIDENCE, VERDICT

from hangwatch.errors import ReportError
from hangwatch.model.kinds import State
from hangwatch.model.report import RasAnswer, RunInfo, Straggler, Stragglers
from hangwatch.report.build import build_report
from hangwatch.report.directories import open_run
from hangwatch.report.files import load_incident, write_incident
from hangwatch.report.runs import write_run

HANG = replace(EVIDENCE, verdicts=(VERDICT,))
SLOW = replace(EVIDENCE, verdicts=(replace(VERDICT, state=State.SLOW),))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The directory of a run."""
    return open_run(tmp_path / "reports", "night-7")


def finish(run_dir: Path, watch: str = "node-a:night-7-1") -> Path:
    """Write run.json."""
    return write_run(
        run_dir,
        RunInfo("night-7", ("torchrun",), "2026-01-02T03:00:00+00:00"),
        watch=watch,
        duration_s=12.3456,
        exit_code=3,
        lost=["something"],
        stragglers=Stragglers((Straggler((2,), 1 / 3, 1.0, 31.0),), 30.0),
    )


def test_an_incident_holds_the_report_and_what_it_was_made_from(run_dir: Path) -> None:
    path = write_incident(run_dir, EVIDENCE)
    assert path == run_dir / "incident-001"
    assert json.loads((path / "report.json").read_text()) == build_report(EVIDENCE)
    assert (path / "pages/rank-2.page").read_bytes() == b"\x00page"
    assert (path / "flight/rank-2.json").read_bytes() == b'{"entries": []}'
    assert not (path / "nccl").exists()
    path = write_incident(run_dir, replace(EVIDENCE, flights={3: b"\x80\x02}."}))
    assert [file.name for file in (path / "flight").iterdir()] == ["rank-3.pickle"]
    ras = RasAnswer(b"{}", is_json=True, complete=True)
    path = write_incident(run_dir, replace(EVIDENCE, ras=ras))
    assert (path / "nccl/ras.json").read_bytes() == b"{}"
    path = write_incident(run_dir, replace(EVIDENCE, ras=replace(ras, is_json=False)))
    assert [file.name for file in (path / "nccl").iterdir()] == ["ras.txt"]
    stacks = "".join(file.read_text() for file in (path / "stacks").iterdir())
    assert "time.sleep(3600)  # a dead mount" in stacks


def test_only_the_owner_may_read_it(run_dir: Path) -> None:
    write_incident(run_dir, EVIDENCE)
    finish(run_dir)
    for path in (run_dir, *run_dir.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_incidents_are_numbered(run_dir: Path) -> None:
    names = [write_incident(run_dir, EVIDENCE).name for _ in range(3)]
    assert names == ["incident-001", "incident-002", "incident-003"]


def test_an_incident_that_became_worse_keeps_its_number(run_dir: Path) -> None:
    first = write_incident(run_dir, SLOW)
    assert write_incident(run_dir, HANG, replaced=first) == first
    assert load_incident(first)[1]["verdict"]["state"] == "hang"
    assert [path.name for path in run_dir.iterdir()] == ["incident-001"]


def test_an_incident_that_was_deleted_is_written_again(run_dir: Path) -> None:
    assert write_incident(run_dir, HANG, replaced=run_dir / "incident-004").name == "incident-004"


def test_nothing_half_written_is_left(run_dir: Path) -> None:
    broken = replace(EVIDENCE, pages={0: b"", "../../x": b""})  # type: ignore[dict-item]
    with pytest.raises(ReportError, match="cannot be written"):
        write_incident(run_dir, broken)
    assert list(run_dir.iterdir()) == []


def test_latest_points_to_the_newest_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        open_run(tmp_path, name)
    assert (tmp_path / "latest").readlink().name == "two"


def test_a_directory_of_the_users_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    open_run(tmp_path, "one")
    assert not (tmp_path / "latest").is_symlink()


def test_a_report_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match=r"reports cannot be written to .*file"):
        open_run(tmp_path / "file", "one")
    with pytest.raises(ReportError, match="the report cannot be written"):
        write_incident(tmp_path / "gone", EVIDENCE)
    with pytest.raises(ReportError, match=r"run\.json cannot be written"):
        finish(tmp_path / "gone")


def test_run_json_tells_how_the_run_ended(run_dir: Path) -> None:
    write_incident(run_dir, EVIDENCE)
    assert json.loads(finish(run_dir).read_text()) == {
        "schema": "hangwatch.run/1",
        "id": "night-7",
        "node": socket.gethostname(),
        "watch": "node-a:night-7-1",
        "command": ["torchrun"],
        "started_at": "2026-01-02T03:00:00+00:00",
        "duration_s": 12.346,
        "exit_code": 3,
        "incidents": ["incident-001"],
        "lost": ["something"],
        "notes": [],
        "stragglers": [
            {
                "ranks": [2],
                "fraction": 0.333,
                "since_s": 1.0,
                "until_s": 31.0,
                "reason": "unknown",
                "site": None,
            }
        ],
        "straggler_reports": [],
        "straggler_watch": {"measured_s": 30.0, "unknown": None},
    }


def test_what_one_watch_has_written_no_other_replaces(run_dir: Path) -> None:
    node = socket.gethostname()
    names = [finish(run_dir, watch).name for watch in ("a:1", "b:1", "b:2", "a:1", "b:1")]
    assert names == ["run.json", f"run-{node}.json", f"run-{node}-2.json", *names[:2]]
    assert json.loads((run_dir / "run.json").read_text())["watch"] == "a:1"
    assert sorted(path.name for path in run_dir.iterdir()) == sorted(set(names))


def test_where_there_are_no_hard_links_it_is_written_as_well(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    assert [finish(run_dir, watch).name for watch in ("a:1", "a:1")] == ["run.json"] * 2
    assert finish(run_dir, "b:1").name != "run.json"


def test_incidents_of_nodes_that_write_at_the_same_time_are_all_kept(run_dir: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: write_incident(run_dir, EVIDENCE), range(24)))
        found += pool.map(lambda path: write_incident(run_dir, HANG, replaced=path), found[:8])
    assert sorted(set(found)) == sorted(run_dir.iterdir())
    assert len(set(found)) == 24
    assert all((path / "report.json").exists() for path in found)


def test_one_whose_number_is_taken_while_it_is_replaced_gets_the_next(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_incident(run_dir, SLOW)
    rename = Path.rename
    monkeypatch.setattr(
        Path,
        "rename",
        lambda path, target: (
            rename(path, target),
            path.name == first.name and rename(write_incident(run_dir, SLOW), first),
        ),
    )
    assert write_incident(run_dir, HANG, replaced=first) == run_dir / "incident-002"
    states = [load_incident(run_dir / f"incident-00{n}")[1]["verdict"]["state"] for n in (1, 2)]
    assert states == ["slow", "hang"]


@pytest.mark.parametrize(
    "below", ["", "night-7", "latest/incident-002", "night-7/incident-002/report.json"]
)
def test_a_report_is_found_from_anywhere_above_it(run_dir: Path, below: str) -> None:
    write_incident(run_dir, SLOW)
    write_incident(run_dir, HANG)
    where, report = load_incident(run_dir.parent / below)
    assert where.resolve() == (run_dir / "incident-002").resolve()
    assert report["verdict"]["state"] == "hang"


def test_a_run_without_incident_is_told_from_a_wrong_path(run_dir: Path, tmp_path: Path) -> None:
    finish(run_dir)
    (tmp_path / "text").write_text("no json")
    (tmp_path / "other.json").write_text('{"schema": "else"}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "empty").mkdir()
    for path, said in (
        (run_dir, "nothing was found in that run"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "empty", "holds no report"),
        (tmp_path / "text", "is not JSON"),
        (tmp_path / "other.json", "schema 'else'"),
        (tmp_path / "list.json", "schema None"),
    ):
        with pytest.raises(ReportError, match=said):
            load_incident(path)


def test_a_run_that_another_one_has_planted_as_a_link_gets_no_report(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "night-7").symlink_to(elsewhere)
    with pytest.raises(ReportError, match="cannot be written"):
        open_run(tmp_path / "reports", "night-7")
    assert list(elsewhere.iterdir()) == []


def test_a_run_directory_that_is_swapped_for_a_link_gets_no_report(
    tmp_path: Path, run_dir: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run_dir.rename(run_dir.with_name("moved"))
    run_dir.symlink_to(elsewhere)
    with pytest.raises(ReportError, match="cannot be written"):
        write_incident(run_dir, HANG)
    with pytest.raises(ReportError, match="cannot be written"):
        finish(run_dir)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_a_run_directory_of_somebody_else_gets_no_report(tmp_path: Path) -> None:
    (tmp_path / "reports" / "night-7").mkdir(parents=True)
    os.chown(tmp_path / "reports" / "night-7", 12345, 12345)
    with pytest.raises(ReportError, match="it belongs to user 12345"):
        open_run(tmp_path / "reports", "night-7")
    assert list((tmp_path / "reports" / "night-7").iterdir()) == []


def test_planted_names_are_passed_over(tmp_path: Path, run_dir: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (run_dir / "incident-001").symlink_to(target)
    (run_dir / "incident-002").symlink_to("nowhere")
    os.mkfifo(run_dir / "run.json")
    assert write_incident(run_dir, HANG) == run_dir / "incident-003"
    assert finish(run_dir) == run_dir / f"run-{socket.gethostname()}.json"
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("target", ["/etc", "..", ".", "../elsewhere", "night-7/incident-001"])
def test_latest_leads_to_nothing_but_a_run_beside_it(
    tmp_path: Path, run_dir: Path, target: str
) -> None:
    write_incident(tmp_path_run(tmp_path / "elsewhere"), HANG)
    link = run_dir.parent / "latest"
    assert load_incident(write_incident(run_dir, HANG).parents[1])[0].parent == run_dir
    link.unlink()
    link.symlink_to(target)
    with pytest.raises(ReportError, match="holds no report"):
        load_incident(run_dir.parent)


def tmp_path_run(root: Path) -> Path:
    """A run in another report directory."""
    return open_run(root, "night-8")
