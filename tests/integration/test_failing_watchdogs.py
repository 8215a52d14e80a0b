"""Watchdogs that are stopped or killed in the middle of an incident."""

from __future__ import annotations

import importlib.util
import os
import signal
from typing import TYPE_CHECKING

import pytest
from hosts import Host, acquainted, everywhere, hosts, launch, needs_hosts
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.quiet,
    needs_hosts,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]


def test_a_watchdog_is_stopped_and_then_killed_where_the_culprit_is(tmp_path: Path) -> None:
    with hosts(tmp_path) as (here, there):
        options = ["--suspect-after=2", "--hang-after=20", "-v"]
        launch([here, there], "steps.py", "1000000", "3", "40", options=options)
        acquainted([here, there])
        silent = there.watchdog()
        os.kill(silent, signal.SIGSTOP)
        everywhere([here], "SLOW")
        before = here.report()
        os.kill(silent, signal.SIGKILL)  # its supervisor starts another one
        everywhere([here, there], "HANG")
        reports = [*here.reports(), *there.reports()]
    assert before["verdict"]["culprits"] == [2, 3]
    assert before["verdict"]["certainty"] == "possible"
    assert before["verdict"]["reason"] != "node_lost"
    assert any(
        note.startswith("node-1 (ranks 2, 3) can be reached, and the watchdog there does not")
        for note in before["unseen"]
    )
    (after,) = [report for report in reports if report["verdict"]["state"] == "hang"]
    assert (after["verdict"]["culprits"], after["verdict"]["victims"]) == ([3], [0, 1, 2])
    assert after["verdict"]["site"]["source"] == "time.sleep(0.05)  # culprit"
    assert after["unseen"] == []


@pytest.mark.parametrize(
    "end", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.campaign)]
)
def test_another_takes_over_from_one_that_fails_while_it_gathers(
    tmp_path: Path, end: signal.Signals
) -> None:
    with hosts(tmp_path, 3) as (*both, silent):
        options = ["--suspect-after=2", "--hang-after=200", "-v"]
        launch([*both, silent], "steps.py", "1000000", "2", "40", options=options, nproc=1)
        acquainted([*both, silent])
        os.kill(silent.watchdog(), signal.SIGSTOP)  # that it is waited for leaves time

        def gathering() -> list[Host]:
            return [host for host in both if "asking the other nodes for all" in host.said()]

        until(gathering, "somebody who gathers")
        owner = gathering()[0]
        (heir,) = (host for host in both if host is not owner)
        os.kill(owner.watchdog(), end)
        everywhere([heir], "SLOW")
        reports = [report for host in both for report in host.reports()]
    assert reports
    for report in reports:
        verdict = report["verdict"]
        assert 2 in verdict["culprits"]
        assert heir.number not in verdict["culprits"]
        assert verdict["certainty"] == "possible"
        assert verdict["reason"] != "node_lost"
        assert any("the watchdog there does not answer" in note for note in report["unseen"])
