"""``hangwatch analyze`` on files and directories, through the command line."""

from __future__ import annotations

import json
import os
import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import made_pages
import pytest
from recorded import SECOND, UNIX, config, done, entry, plain

from hangwatch import cli
from hangwatch.model.kinds import OpState, Phase

if TYPE_CHECKING:
    from pathlib import Path

STUCK = [plain(done(1), entry(2)), plain(done(1))]
"""Rank 1 never issues the second all_reduce."""


def write(path: Path, content: dict[str, Any]) -> Path:
    """A dump as its name says: JSON, else a pickle."""
    as_json = path.suffix == ".json"
    path.write_bytes(json.dumps(content).encode() if as_json else pickle.dumps(content))
    return path


def stuck_pair(where: Path) -> None:
    """The dumps of two ranks, one of them JSON."""
    where.mkdir(parents=True, exist_ok=True)
    write(where / "nccl_trace_rank_0", STUCK[0])
    write(where / "nccl_trace_rank_1.json", STUCK[1])


def analyzed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["analyze", *map(str, words)], {})
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def report_of(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, _ = analyzed(capsys, "--json", *words)
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    assert report["schema"] == "hangwatch.report/1"
    return report


def test_a_directory_of_dumps_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stuck_pair(tmp_path)
    code, out, err = analyzed(capsys, tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("hangwatch: HANG (possible")
    assert "Rank 1 never entered all_reduce #2 of group default_pg" in out
    assert "process 0" not in out
    assert "none could be written" not in out


@pytest.mark.parametrize("name", ["rank_{}.json", "trace_{}.pkl", "fr{}", "_dump_{}", "dump.{}"])
def test_any_name_that_ends_in_the_rank_will_do(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [write(tmp_path / name.format(rank), STUCK[rank]) for rank in (0, 1)]
    assert report_of(capsys, *files)["verdict"]["culprits"] == [1]
    assert report_of(capsys, tmp_path)["verdict"]["culprits"] == [1]


def test_json_is_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stuck_pair(tmp_path)
    report = report_of(capsys, tmp_path)
    verdict = report["verdict"]
    assert (verdict["state"], verdict["kind"], verdict["victims"]) == ("hang", "never_entered", [0])
    assert verdict["collective"]["op"] == "all_reduce"
    assert report["waits"][0]["for"] == [1]
    assert report["run"]["world_size"] == 2
    assert report["run"]["nodes"] == []


@pytest.mark.parametrize("name", ["nccl_trace_rank_{}", "rank_{}.json"])
def test_dumps_with_split_sizes_tell_what_does_not_fit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = config(g0=("default_pg", [0, 1, 2]))
    for rank in range(3):
        splits = {"input_split_sizes": [8, 8, 8], "output_split_sizes": [8, 8, 8]}
        if rank == 1:
            splits["output_split_sizes"] = [16, 8, 0]
        exchange = entry(2, "nccl:all_to_all", **splits)
        dump = plain(done(1), exchange, version="2.11", pg_config=ranks)
        write(tmp_path / name.format(rank), dump)
    verdict = report_of(capsys, tmp_path)["verdict"]
    assert (verdict["kind"], verdict["culprits"]) == ("signature_mismatch", [1])
    assert "rank 0 sends 8 elements to rank 1, which expects 16" in verdict["headline"]
    assert "rank 2 sends 8 elements to rank 1, which expects 0" in verdict["headline"]


def test_a_job_in_which_nothing_waits_is_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank_{rank}.json", plain(done(1), done(2)))
    code, out, _ = analyzed(capsys, tmp_path)
    assert code == 0
    assert out.startswith("hangwatch: OK")


def test_a_damaged_dump_is_named_and_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck_pair(tmp_path)
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"\x80\x02cposix\nsystem\n.")
    (tmp_path / "nccl_trace_rank_3").write_bytes(pickle.dumps(STUCK[0])[:100])
    code, out, _ = analyzed(capsys, tmp_path)
    assert code == 0
    assert "Rank 1 never entered" in out
    unwrapped = " ".join(out.split())
    assert "nccl_trace_rank_2: the pickle uses opcode" in unwrapped
    assert "nccl_trace_rank_3: the pickle is damaged" in unwrapped
    report = report_of(capsys, tmp_path)
    assert report["verdict"]["culprits"] == [1]
    assert len([text for text in report["unseen"] if "nccl_trace_rank_" in text]) == 2


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rank_0", b"\x80\x02}.", "no version"),
        ("rank_0.json", b"{", "no JSON"),
        ("r0-0-1.page", b"no page", "rank page cannot be read"),
        ("notes", b"", "has to end in its rank"),
    ],
)
def test_what_cannot_be_read_at_all_is_an_error_that_names_the_file(
    name: str, content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    code, out, err = analyzed(capsys, tmp_path / name)
    assert (code, out) == (2, "")
    assert name in err
    assert says in err


def test_other_files_and_nothing_at_all_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stacks7.txt").write_text("not a dump")
    (tmp_path / "fault.log").write_text("not one either")
    assert "ends in its rank" in analyzed(capsys, tmp_path)[2]
    assert "does not exist" in analyzed(capsys, tmp_path / "gone_3")[2]
    os.mkfifo(tmp_path / "rank_0")
    assert "it is a FIFO, not a file" in analyzed(capsys, tmp_path)[2]
    for words in ((), ("--json",), (tmp_path, "--jason")):
        code, _, err = analyzed(capsys, *words)
        assert code == 2
        assert "see hangwatch analyze --help" in err


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck_pair(tmp_path)
    with (tmp_path / "rank_2").open("wb") as file:
        file.truncate(1 << 40)
    assert "TORCH_FR_BUFFER_SIZE" in analyzed(capsys, tmp_path)[1]


def test_a_rank_of_which_nothing_is_there_is_named_only_where_nothing_else_explains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three = config(g0=("default_pg", [0, 1, 2]))
    write(tmp_path / "rank_0", plain(done(1), entry(2), pg_config=three))
    write(tmp_path / "rank_1", plain(done(1), entry(2), pg_config=three))
    report = report_of(capsys, tmp_path)
    assert report["verdict"]["culprits"] == [2]
    write(tmp_path / "rank_1", plain(done(1), pg_config=three))
    report = report_of(capsys, tmp_path)
    assert report["verdict"]["culprits"] == [1]
    assert report["also"] == []
    assert "no data for rank 2" in report["unseen"]


def test_of_two_dumps_of_a_rank_the_newer_one_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck_pair(tmp_path)
    write(tmp_path / "later_rank_1.pkl", plain(done(1), done(2)))
    write(tmp_path / "later_rank_0.pkl", plain(done(1), done(2), entry(3)))
    assert report_of(capsys, tmp_path)["verdict"]["collective"]["seq"] == 3
    write(tmp_path / "last_rank_0.pkl", plain(done(1), done(2), done(3), done(4)))
    assert report_of(capsys, tmp_path)["verdict"]["state"] == "ok"


def test_a_job_that_still_moved_when_it_was_dumped_is_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck_pair(tmp_path)
    at_ns = UNIX + 2 * SECOND
    for path in tmp_path.iterdir():
        os.utime(path, ns=(at_ns, at_ns + SECOND // 10))
    assert report_of(capsys, tmp_path)["verdict"]["state"] == "ok"
    for path in tmp_path.iterdir():
        os.utime(path, ns=(at_ns, at_ns + 60 * SECOND))
    verdict = report_of(capsys, tmp_path)["verdict"]
    assert (verdict["state"], verdict["stuck_age_s"]) == ("hang", 60.0)


def pages(where: Path) -> None:
    """Pages of two ranks: 0 waits in its third all_reduce, 1 has not come to it."""
    where.mkdir(parents=True)
    now_ns = time.monotonic_ns()
    waiting = made_pages.event(state=OpState.BLOCKED, issued_ns=now_ns - 400 * SECOND)
    waiting = replace(waiting, blocked_ns=waiting.issued_ns)
    made_pages.write(where, made_pages.page(0, events=(waiting,)))
    made_pages.write(where, made_pages.page(1, groups=(made_pages.group(2),)))


def test_pages_are_judged_as_they_are_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages(tmp_path / "pages")
    report = report_of(capsys, tmp_path)
    assert report["verdict"]["culprits"] == [1]
    assert report["verdict"]["victim_site"]["line"] == made_pages.SITE.line
    assert report["verdict"]["stuck_age_s"] >= 400


def test_an_incident_is_judged_by_its_pages_and_its_dumps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages(tmp_path / "pages")
    (tmp_path / "flight").mkdir()
    gloo = {"state": "scheduled", "retired": True}
    write(
        tmp_path / "flight/rank-0.json",
        plain(entry(2, "gloo:all_reduce", **gloo), entry(3, "gloo:all_reduce")),
    )
    (tmp_path / "report.json").write_text("{}")
    report = report_of(capsys, tmp_path)
    assert report["verdict"]["culprits"] == [1]
    assert report["unseen"] == ["pages hold calls, not stacks"]


def test_a_page_tells_that_its_rank_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages(tmp_path / "pages")
    ended = made_pages.page(1, groups=(made_pages.group(2),), phase=Phase.EXITED)
    made_pages.write(tmp_path / "pages", ended)
    verdict = report_of(capsys, tmp_path)["verdict"]
    assert (verdict["kind"], verdict["culprits"]) == ("finished_early", [0, 1])
