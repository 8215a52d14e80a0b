"""The hook, and what is said on standard error."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from incident import EVIDENCE, VERDICT
from waiting import BOUND_S, in_time, until

from hangwatch.console import News
from hangwatch.evidence.background import Worker, in_thread
from hangwatch.evidence.processes import read_stat
from hangwatch.watchdog import timing
from hangwatch.watchdog.incident.reporter import hook_variables, run_hook
from hangwatch.watchdog.startup import Absence

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["said_news"]

HOOK_VARIABLES = ("REPORT", "HEADLINE", "STATE", "KIND", "CULPRITS", "RUN_ID")


def hook(command: str, news: News, report: Path | None = None) -> None:
    told = hook_variables(EVIDENCE, report)
    asyncio.run(run_hook(command, report, told, news))


def test_the_hook_gets_the_report_and_the_verdict(tmp_path: Path, news: News) -> None:
    script = tmp_path / "hook.sh"
    script.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/out\nenv > {tmp_path}/env\n')
    script.chmod(0o700)
    report = tmp_path / "report dir"
    hook(f"{script} --to 'ops team'", news, report)
    expected = ["--to", "ops team", str(report), ""]
    assert (tmp_path / "out").read_text().split("|") == expected
    told = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert {name: told[f"HANGWATCH_{name}"] for name in HOOK_VARIABLES} == {
        "REPORT": str(report),
        "HEADLINE": VERDICT.headline,
        "STATE": "hang",
        "KIND": "never_entered",
        "CULPRITS": "2",
        "RUN_ID": "night-7",
    }
    assert news.lost == []


def test_a_hostile_headline_stays_one_line_of_text() -> None:
    verdict = replace(VERDICT, headline="$(id)\n\0\x1b[31m';", culprits=(0, 5), kind=None)
    told = hook_variables(replace(EVIDENCE, verdicts=(verdict,)), None)
    assert told["HANGWATCH_HEADLINE"] == r"$(id)\n\x00\x1b[31m';"
    assert (told["HANGWATCH_CULPRITS"], told["HANGWATCH_KIND"]) == ("0,5", "")
    assert told["HANGWATCH_REPORT"] == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/nowhere/hook", "cannot be run"),
        ("'unbalanced", "cannot be run"),
        ("sh -c 'echo first; echo the reason >&2; exit 3'", "exit code 3 (the reason)"),
        ("false", "exit code 1 (no output)"),
    ],
)
def test_a_hook_that_fails_is_mentioned_once(
    news: News, said: Path, command: str, words: str
) -> None:
    hook(command, news)
    hook(command, news)
    assert said.read_text().count("--hook") == 1
    assert words in said.read_text()


def test_a_hook_that_takes_too_long_is_ended_with_all_that_it_started(
    news: News, said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "HOOK_S", 0.3)
    began = time.monotonic()
    hook(f"sh -c 'sleep 600 & echo $! > {tmp_path}/pid; sleep 600'", news)
    in_time(began, 20)
    assert "not done after 0.3 s" in said.read_text()
    left = int((tmp_path / "pid").read_text())
    until(lambda: (stat := read_stat(left)) is None or stat.ended)


def test_the_hooks_output_stays_away_from_the_job(news: News, said: Path) -> None:
    hook("sh -c 'echo chatter; echo noise >&2'", news)
    assert said.read_text() == ""


def test_news_is_said_once_and_kept_for_reports(news: News, said: Path) -> None:
    news.lose("a", "lost a")
    news.lose("a", "lost a again")
    news.lose("b:7", "lost b", quiet=True)
    news.debug("detail")
    assert said.read_text() == "hangwatch: lost a\n"
    assert news.lost == ["lost a", "lost b"]
    assert news.losses == {"a": 1, "b": 1}


def test_a_watchdog_that_takes_over_does_not_repeat_the_news(news: News, said: Path) -> None:
    news.lose("a", "lost a")
    successor = News(news._fd)  # noqa: SLF001
    successor.restore(news.said, news.lost, news.losses)
    successor.lose("a", "lost a")
    assert said.read_text().count("lost a") == 1
    assert successor.lost == ["lost a"]
    assert successor.losses == {"a": 1}


def test_news_from_outside_stays_on_its_line(news: News, said: Path) -> None:
    news.say("two\nlines \x1b[31m")
    assert said.read_text() == "hangwatch: two\\nlines \\x1b[31m\n"


def test_a_standard_error_that_is_gone_is_no_error() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    News(fd).say("nobody hears this")


def absence(tmp_path: Path, news: News, ranks: int) -> Absence:
    """A job that has so many processes with a RANK."""
    for pid in range(10, 11 + ranks):
        (tmp_path / str(pid)).mkdir(parents=True)
        stat = f"{pid} (python) S {10 if pid > 10 else 1} {'0 ' * 17}{pid} {'0 ' * 30}"
        (tmp_path / str(pid) / "stat").write_text(stat)
        environ = f"RANK={pid - 11}\0" if pid > 10 else "HOME=/\0"
        (tmp_path / str(pid) / "environ").write_text(environ)
    return Absence(lambda: [10], news, str(tmp_path))


def test_ranks_without_pages_are_mentioned_after_a_minute(
    tmp_path: Path, news: News, said: Path
) -> None:
    found = absence(tmp_path / "proc", news, 2)
    for second in range(0, 60, 5):
        found.look(second)
    assert said.read_text() == ""
    for second in range(60, 90, 5):
        found.look(second)
    found.ended()
    assert said.read_text().count("hangwatch:") == 1
    assert "2 ranks were started" in said.read_text()
    assert "hangwatch.agent.arm()" in said.read_text()


def test_a_short_job_whose_ranks_had_no_pages_is_told_so_at_its_end(
    tmp_path: Path, news: News, said: Path
) -> None:
    found = absence(tmp_path / "proc", news, 1)
    found.look(1)
    found.ended()
    assert "1 rank was started but none checked in" in said.read_text()


def test_a_job_without_torch_is_told_that_there_was_nothing_to_watch(
    tmp_path: Path, news: News, said: Path
) -> None:
    found = absence(tmp_path / "proc", news, 0)
    for second in range(0, 200, 5):
        found.look(second)
    assert said.read_text() == ""
    found.ended()
    assert "nothing to watch" in said.read_text()


def test_a_call_in_a_thread_gives_its_result_its_error_or_up() -> None:
    def fail() -> None:
        raise KeyError("x")

    async def run() -> None:
        assert await in_thread(lambda: 7, BOUND_S) == 7
        with pytest.raises(KeyError):
            await in_thread(fail, BOUND_S)
        with pytest.raises(TimeoutError):
            await in_thread(lambda: time.sleep(0.5), 0.05)

    asyncio.run(run())


def test_a_worker_makes_its_calls_in_order() -> None:
    async def run() -> list[int]:
        worker, done = Worker("test"), list[int]()
        await asyncio.gather(*(worker.run(partial(done.append, n)) for n in range(20)))
        worker.stop()
        return done

    assert asyncio.run(run()) == list(range(20))
