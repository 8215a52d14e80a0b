"""Another user has put what they like where our commands look: each says so, and ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import BOUND_S

from hangwatch.console import News
from hangwatch.evidence.pages.finder import Pages

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534
DRIVER = Path(__file__).parent / "programs" / "looks_at_all.py"
MOST_MIB = 600
"""Of memory: the interpreter with rich and jinja2 takes 60."""
TEXT_BOMB = b"[" * 200_000
VALUE_BOMB = b'{"schema": "hangwatch.report/1", "x": [' + b"[]," * 6_000_000 + b"0]}"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    where = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{where}/{path.name}")
    os.close(where)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 36)


PLANTED: dict[str, Callable[[Path], Any]] = {
    "fifo": fifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("/etc/shadow"),
    "root": lambda path: path.symlink_to("/"),
    "itself": lambda path: path.symlink_to(path.name),
    "socket": unix_socket,
    "directory": Path.mkdir,
    "sparse": sparse,
    "empty": Path.touch,
    "nested": lambda path: path.write_bytes(TEXT_BOMB),
    "values": lambda path: path.write_bytes(VALUE_BOMB),
    "random": lambda path: path.write_bytes(os.urandom(1 << 16)),
    "number": lambda path: path.write_bytes(b"[1e999, " + b"9" * 5000 + b"]"),
}
OF_A_RUN = (
    *("run.json", "lock", "watchdog.json", "r0-0-1.page", "agent-7.err", "command-7"),
    *("watch", "job.json", "r0-0-1.page.practice"),
)


def facts(**changes: Any) -> str:
    content: dict[str, Any] = {
        "schema": "hangwatch.run-facts/1",
        "run_id": "theirs",
        "command": ["torchrun", "train.py"],
        "command_pid": 1,
        "supervisor_pid": 1,
        "shared": False,
        "started_at": "2026-01-02T03:04:05.000+00:00",
        "node": "here",
        "report_dir": None,
        "watch": "here:theirs",
    }
    return json.dumps({**content, **changes})


def kept(report: Path) -> str:
    """A watchdog's state that says that there is an incident with this report."""
    return json.dumps(
        {
            "version": 1,
            "judge": {"incidents": {"stage": "hang", "number": 1}, "told_elsewhere": False},
            "reporter": {"report": str(report), "elsewhere": None},
        }
    )


def look(tmp_path: Path, commands: list[list[str]], base: Path) -> list[dict[str, Any]]:
    """What came of each of our commands: code, output, seconds; memory of all."""
    done = subprocess.run(  # noqa: S603 (our own Python)
        [sys.executable, str(DRIVER)],
        input=json.dumps(commands),
        env={"HANGWATCH_DIR": str(base), "PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(commands)
    for outcome in outcomes:
        assert outcome["code"] in {0, 1, 2}, outcome
        assert "Traceback" not in outcome["said"], outcome
        assert "root:" not in outcome["said"]
        assert outcome["mib"] < MOST_MIB, outcome
    return outcomes


def given_away(top: Path) -> None:
    """All of it belongs to another user."""
    if os.geteuid() == 0:
        for path in (top, *top.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.mark.parametrize("kind", PLANTED)
def test_the_runs_of_another_user_are_looked_at_and_left(tmp_path: Path, kind: str) -> None:
    """For top, inspect and doctor. Each path is planted in a run of its own."""
    base = tmp_path / "base"
    user = base / f"hangwatch-{NOBODY if os.geteuid() == 0 else os.getuid()}"
    user.mkdir(parents=True)
    locks = []
    for number, name in enumerate(OF_A_RUN):
        run = user / f"run-{number}"
        run.mkdir()
        (run / "run.json").write_text(facts(run_id=run.name, shared=name == "command-7"))
        (run / "lock").touch()
        (run / name).unlink(missing_ok=True)
        PLANTED[kind](run / name)
    told = user / "run-told"
    told.mkdir()
    PLANTED[kind](tmp_path / "report")
    (told / "run.json").write_text(facts(report_dir=str(tmp_path / "report")))
    (told / "lock").touch()
    (told / "watchdog.json").write_text(kept(tmp_path / "report"))
    PLANTED[kind](user / "not-a-run")
    given_away(user)
    for lock in user.glob("*/lock"):
        if lock.is_file() and not lock.is_symlink():
            locks.append(lock.open("rb"))
            fcntl.flock(locks[-1], fcntl.LOCK_EX)
    commands = [["top", "--once", str(run)] for run in sorted(user.glob("run-*"))]
    outcomes = look(tmp_path, [*commands, ["top", "--once"], ["inspect"], ["doctor:jobs"]], base)
    for held in locks:
        held.close()
    listed = outcomes[-3]
    assert listed["code"] == 2
    assert listed["said"].count("\n") >= len(OF_A_RUN) - 2  # those whose lock and facts are whole


@pytest.mark.parametrize("kind", PLANTED)
def test_the_reports_of_another_user_are_read_and_left(tmp_path: Path, kind: str) -> None:
    """For report, report --list and analyze."""
    reports = tmp_path / "reports"
    (reports / "run-a" / "incident-001").mkdir(parents=True)
    (reports / "run-b" / "incident-002").mkdir(parents=True)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    PLANTED[kind](reports / "run-a" / "incident-001" / "report.json")
    PLANTED[kind](reports / "run-b" / "run.json")
    PLANTED[kind](reports / "latest")
    PLANTED[kind](reports / "run-c")
    for name in ("rank_0", "trace_1.pkl", "r0-2-1.page", "report.json"):
        PLANTED[kind](dumps / name)
    given_away(reports)
    paths = [reports, *sorted(reports.iterdir()), reports / "run-a" / "incident-001"]
    commands = [[*word, str(path)] for path in paths for word in (["report"], ["report", "--list"])]
    alone = [["analyze", str(path)] for path in (dumps, reports, *sorted(dumps.iterdir()))]
    if kind in {"root", "directory"}:
        alone = alone[:2]  # of all the machine's files that is another test
        commands = [
            command for command in commands if not command[-1].endswith(("run-c", "latest"))
        ]
    look(tmp_path, [*commands, *alone], tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_page_that_its_owner_cuts_is_no_end_of_roots_look(tmp_path: Path) -> None:
    """A mapping of it would be a SIGBUS."""
    run = tmp_path / "run"
    run.mkdir()
    page = run / "r0-0-1.page"
    page.write_bytes(bytes(1 << 20))
    given_away(run)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    looked = Pages(run, News(nowhere))
    looked.look()
    (opened,) = looked._open.values()  # noqa: SLF001 (how it is read is the point)
    assert opened.memory is None
    os.truncate(page, 100)
    assert looked.look() == {}
    looked.close()
    os.close(nowhere)
