"""What is made of other nodes' verdicts, and of what one node can prove by itself."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from incident import EVIDENCE, VERDICT
from snapshots import THRESHOLDS

from hangwatch.model.kinds import Certainty, State
from hangwatch.settings.config import Config
from hangwatch.watchdog.incident.evidence import Collected
from hangwatch.watchdog.incident.judge import Judge
from hangwatch.watchdog.incident.reporter import Judged
from hangwatch.watchdog.incident.stages import Incidents, Stage
from hangwatch.watchdog.peers.messages import Published

if TYPE_CHECKING:
    from hangwatch.model.verdict import Verdict


def judge(
    told: list[Any], found: tuple[Verdict, ...] = (), incidents: Incidents | None = None
) -> Judge:
    hello: Any = SimpleNamespace(run=EVIDENCE.run, config=Config())
    gatherer: Any = SimpleNamespace(incarnation=0)
    reporter: Any = SimpleNamespace(remote=told.append)
    news: Any = None
    return Judge(
        hello, gatherer, reporter, news, lambda *_: found, "n0", incidents=incidents or Incidents()
    )


def test_how_a_hung_job_falls_apart_on_another_node_is_no_news() -> None:
    told: list[Any] = []
    ours = judge(told, incidents=Incidents(Stage.HANG))
    ours.heard(Published("n1", (replace(VERDICT, state=State.FAILED),)))
    assert (told, ours.incidents.stage) == ([], Stage.HANG)


@pytest.mark.parametrize(("culprits", "proved"), [((2,), True), ((1,), False)])
def test_a_hang_is_proved_here_if_this_node_alone_finds_the_same_culprits(
    culprits: tuple[int, ...], *, proved: bool
) -> None:
    sure = replace(VERDICT, certainty=Certainty.PROVED)
    ours = judge([], (replace(sure, culprits=culprits),))
    judged = Judged((sure,), EVIDENCE.job, Collected(0, 4, ()))
    asked = ours._proved_here(judged, THRESHOLDS)  # noqa: SLF001 (the question itself)
    assert asyncio.run(asked) is proved


def test_the_watchdog_goes_on_while_a_large_job_is_judged() -> None:
    ours = judge([])
    where = []

    def diagnose(*_: Any) -> tuple[Verdict, ...]:
        where.append(threading.current_thread())
        time.sleep(0.3)
        return (VERDICT,)

    async def watched() -> tuple[int, tuple[Verdict, ...]]:
        ours.diagnose = diagnose
        judged = asyncio.ensure_future(
            ours._diagnosed(EVIDENCE.job, THRESHOLDS)  # noqa: SLF001 (without what is gathered)
        )
        turns = 0
        while not judged.done():
            turns += 1
            await asyncio.sleep(0.01)
        return turns, await judged

    turns, verdicts = asyncio.run(watched())
    assert turns > 1
    assert verdicts == (VERDICT,)
    assert where != [threading.current_thread()]
