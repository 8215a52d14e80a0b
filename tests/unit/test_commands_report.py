"""``hangwatch report``: text, JSON, the page and the list of a report directory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import slow_evidence
from incident import EVIDENCE

from hangwatch import cli
from hangwatch.model.kinds import State
from hangwatch.model.report import RunInfo
from hangwatch.report.build import build_report
from hangwatch.report.directories import open_run
from hangwatch.report.files import write_incident, write_straggler
from hangwatch.report.html import render_straggler
from hangwatch.report.runs import write_run
from hangwatch.report.straggler import build_straggler_report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Report = Callable[..., tuple[int, str, str]]
    """Calls the command with words and variables; exit code, standard output and error."""

STARTED = "2026-01-02T03:00:00.000+00:00"
SLOW = replace(EVIDENCE, verdicts=(replace(EVIDENCE.verdicts[0], state=State.SLOW),))


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs: one with two incidents, a later one that ended well."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "hangwatch-reports"
    run = open_run(root, "night-7")
    write_incident(run, SLOW)
    write_incident(run, EVIDENCE)
    ended(run, "night-7", STARTED, 75)
    ended(open_run(root, "night-8"), "night-8", "2026-01-03T03:00:00.000+00:00", 0)
    return root


def ended(run: Path, run_id: str, started_at: str, code: int) -> None:
    write_run(
        run,
        RunInfo(run_id, ("torchrun", "train.py"), started_at),
        watch=f"node:{run_id}",
        duration_s=732.0,
        exit_code=code,
    )


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    def call(*words: object, **environ: str) -> tuple[int, str, str]:
        code = cli.main(["report", *map(str, words)], environ)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.mark.usefixtures("reports")
def test_without_a_path_the_usual_directory_is_meant(report: Report) -> None:
    code, out, err = report("hangwatch-reports/night-7")
    assert (code, err) == (0, "")
    assert out.startswith("hangwatch: HANG (likely, stuck for 8.3 s)")
    code, _, err = report()
    assert code == 2
    assert "nothing was found in that run" in err, "the newest run had no incident"


@pytest.mark.usefixtures("reports")
def test_a_variable_names_another_directory(report: Report, tmp_path: Path) -> None:
    (tmp_path / "hangwatch-reports").rename(tmp_path / "elsewhere")
    assert report(HANGWATCH_REPORT_DIR="elsewhere")[2].startswith("hangwatch: elsewhere")
    assert "there is no hangwatch-reports here" in report()[2]
    assert "HANG" in report("--list", HANGWATCH_REPORT_DIR="elsewhere")[1]


@pytest.mark.usefixtures("reports")
def test_json_is_the_stored_report(report: Report) -> None:
    code, out, _ = report("--json", "hangwatch-reports/night-7")
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(build_report(EVIDENCE)))


@pytest.mark.usefixtures("reports")
def test_the_page_is_made_anew(report: Report, tmp_path: Path) -> None:
    code, out, _ = report("hangwatch-reports/night-7", "--html")
    assert code == 0
    assert out.lower().startswith("<!doctype html>")
    assert report("hangwatch-reports/night-7", "--html", "-o", "page.html")[:2] == (0, "")
    assert (tmp_path / "page.html").read_text() == out
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600


def test_the_list_has_each_run_with_its_incidents(report: Report, reports: Path) -> None:
    code, out, _ = report("--list")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("night-8  2026-01-0")
    assert lines[0].endswith("  12 min, exit code 0, no incident")
    assert lines[1] == "  torchrun train.py"
    assert lines[3].startswith("night-7  2026-01-0")
    assert lines[3].endswith("  12 min, exit code 75")
    assert lines[5].startswith("  incident-001  SLOW (likely)  ")
    assert lines[5].endswith(", 4 min after the start")
    assert lines[6].strip().startswith("Rank 2 is stuck in its data loader")
    assert any(line.startswith("  incident-002  HANG (likely)") for line in lines)
    assert report("--list", reports / "night-7")[1].splitlines()[0] == lines[3]


def test_a_straggler_is_printed_and_listed(report: Report, reports: Path) -> None:
    where = write_straggler(reports / "night-8", slow_evidence.EVIDENCE)
    code, out, _ = report()
    assert code == 0, "the newest run has no incident"
    assert out.startswith("hangwatch: STRAGGLER (34 % of the time)")
    assert out.endswith("report     hangwatch-reports/night-8/straggler-001\n")
    assert report(where)[1] == report(where / "straggler.json")[1] == out
    made = build_straggler_report(slow_evidence.EVIDENCE)
    assert json.loads(report("--json", where)[1]) == json.loads(json.dumps(made))
    assert report("--html", where)[1] == render_straggler(made)
    listed = report("--list", reports / "night-8")[1].splitlines()
    assert listed[0].endswith("  12 min, exit code 0")
    assert listed[2].startswith("  straggler-001 STRAGGLER (34 % of the time)  ")
    assert listed[3] == "    " + made["headline"]


def test_of_a_run_with_both_the_incident_is_printed(report: Report, reports: Path) -> None:
    write_straggler(reports / "night-7", slow_evidence.EVIDENCE)
    assert report("hangwatch-reports/night-7")[1].startswith("hangwatch: HANG")


def test_a_damaged_straggler_is_said_so(report: Report, reports: Path) -> None:
    where = write_straggler(reports / "night-8", slow_evidence.EVIDENCE)
    for content in ('{"schema": "hangwatch.straggler/1"}', "[]"):
        (where / "straggler.json").write_text(content)
        for form in ((), ("--html",)):
            assert report(where, *form)[0] == 2
        assert "  straggler-001 unreadable" in report("--list", reports / "night-8")[1]


def test_a_directory_that_does_not_say_which_run_is_newest_is_listed(
    report: Report, reports: Path
) -> None:
    (reports / "latest").unlink()
    assert report()[1].startswith("night-8  ")


def test_a_run_that_goes_on_is_listed_by_its_incidents(report: Report, reports: Path) -> None:
    (reports / "night-7" / "run.json").unlink()
    (first, second) = report("--list", reports / "night-7")[1].splitlines()[:2]
    assert first.endswith("not ended, or its supervisor was killed")
    assert second == "  torchrun train.py"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"schema": "hangwatch.report/9"}',
        '{"schema": "hangwatch.report/1"}',
        '{"schema": "hangwatch.report/1", "verdict": {"state": 7}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_report_is_said_so(report: Report, reports: Path, content: str) -> None:
    (reports / "night-7" / "incident-002" / "report.json").write_text(content)
    for form in ((), ("--html",)):
        code, out, err = report(reports / "night-7", *form)
        assert (code, out) == (2, "")
        assert err.startswith("hangwatch: ")
        assert err.count("\n") == 1
    code, out, _ = report("--list", reports / "night-7")
    assert code == 0
    assert "  incident-002  unreadable" in out
    assert "  incident-001  SLOW" in out


def test_odd_run_files_cost_what_they_would_have_told(report: Report, reports: Path) -> None:
    for content in ("", "[]", '{"exit_code": "x", "started_at": 7, "command": "rm"}'):
        (reports / "night-7" / "run.json").write_text(content)
        assert "incident-002  HANG" in report("--list")[1]


def test_hostile_text_in_a_list_stays_on_its_line(report: Report, reports: Path) -> None:
    file = reports / "night-7" / "incident-002" / "report.json"
    content = json.loads(file.read_text())
    for name in ("state", "certainty", "headline"):
        content["verdict"][name] = "a\x1b[31m\nhangwatch: OK"
    content["run"]["command"] = ["x\x1b]0;t\x07\ny"]
    (reports / "night-7" / "run.json").unlink()
    (reports / "night-7" / "incident-001" / "report.json").unlink()
    file.write_text(json.dumps(content))
    out = report("--list")[1]
    assert "\x1b" not in out
    assert not any(line.startswith("hangwatch:") for line in out.splitlines())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "nowhere does not exist"),
        (("--list", "nowhere"), "nowhere is no directory"),
        (("--list", "."), "holds no runs"),
        (("--json", "--html"), "not allowed with"),
        (("-o", "x"), "-o FILE goes with"),
        (("--jason",), "see hangwatch report --help"),
        (
            ("hangwatch-reports/night-7", "--html", "-o", "/nowhere/x"),
            "/nowhere/x cannot be written",
        ),
    ],
)
@pytest.mark.usefixtures("reports")
def test_mistakes_are_explained(
    report: Report, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    if words == ("--list", "."):
        words = ("--list", str(tmp_path))
        (tmp_path / "hangwatch-reports").rename(tmp_path / ".hidden")
    code, out, err = report(*words)
    assert (code, out) == (2, "")
    assert said in err
