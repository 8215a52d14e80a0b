"""Hosts that are lost or cut off: what those that live make of it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from hosts import acquainted, everywhere, hosts, launch, needs_hosts, recovered
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.quiet,
    needs_hosts,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
OPTIONS = ("--suspect-after=2", "--hang-after=200", "-v")
ENDLESS = "1000000"


def test_all_processes_of_a_host_are_killed_and_it_goes_away(tmp_path: Path) -> None:
    with hosts(tmp_path) as (here, lost):
        launch([here, lost], "steps.py", ENDLESS, options=OPTIONS)
        acquainted([here, lost])
        lost.kill()
        everywhere([here], "FAILED")
        report = here.report()
    verdict = report["verdict"]
    assert (verdict["kind"], verdict["reason"]) == ("died", "node_lost")
    assert (verdict["culprits"], verdict["victims"]) == ([2, 3], [0, 1])
    assert verdict["certainty"] == "likely"
    assert "lost with their node (node-1)" in verdict["headline"]
    assert "node-1 (ranks 2, 3) cannot be reached any more" in report["unseen"]
    assert report["run"]["nodes"] == ["node-0", "node-1"]


def test_a_host_loses_its_power(tmp_path: Path) -> None:
    with hosts(tmp_path) as (here, lost):
        launch([here, lost], "steps.py", ENDLESS, options=OPTIONS)
        acquainted([here, lost])
        lost.lose_power()  # nothing tells its peers: they wait
        everywhere([here], "SLOW")
        verdict = here.report()["verdict"]
    assert (verdict["reason"], verdict["certainty"]) == ("node_lost", "likely")
    assert (verdict["culprits"], verdict["victims"]) == ([2, 3], [0, 1])


def test_the_host_that_has_the_store_loses_its_power(tmp_path: Path) -> None:
    with hosts(tmp_path, 3) as (lost, *here):
        launch([lost, *here], "steps.py", ENDLESS, options=OPTIONS, nproc=1)
        acquainted([lost, *here])
        lost.lose_power()
        everywhere(here, "SLOW")
        reports = [host.report() for host in here]
    for number, report in enumerate(reports, 1):
        verdict = report["verdict"]
        assert (verdict["reason"], verdict["certainty"]) == ("node_lost", "likely")
        assert (verdict["culprits"], verdict["victims"]) == ([0], [number])
        assert "node-0 (rank 0) cannot be reached any more" in report["unseen"]
        assert any(note.startswith(f"rank {3 - number}: ") for note in report["unseen"])


def test_a_host_is_cut_off_and_comes_back(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        launch(made, "steps.py", ENDLESS, "0", "600", options=OPTIONS, nproc=1)
        acquainted(made)
        made[1].cut_off()
        everywhere(made, "SLOW")
        seen_from = [host.report() for host in made]
        made[1].reconnect()
        recovered(made)
        # The next incident is one for both again.
        everywhere(made, "SLOW", 2)
        (tmp_path / "go-600").touch()
        after = [report for host in made for report in host.reports()]
    verdicts = [report["verdict"] for report in seen_from]
    assert [verdict["reason"] for verdict in verdicts] == ["node_lost", "node_lost"]
    assert [verdict["culprits"] for verdict in verdicts] == [[1], [0]]
    # Who has the store can still reach that; the other may be the one that is lost.
    assert [verdict["certainty"] for verdict in verdicts] == ["likely", "possible"]
    assert "node-1 is cut off" in verdicts[1]["headline"]
    assert "this node (node-1) cannot reach any other" in seen_from[1]["unseen"]
    (later,) = [one for one in after if one["verdict"]["reason"] != "node_lost"]
    assert (later["verdict"]["culprits"], later["verdict"]["victims"]) == ([0], [1])
    assert later["unseen"] == []


def test_a_rank_fails_and_those_on_another_host_of_it(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        launch(made, "steps.py", ENDLESS, "3", "40", options=["--suspect-after=60", "-v"])
        acquainted(made)
        (tmp_path / "go-40").write_text("bad batch")
        for host in made:
            until(lambda host=host: host.exit_code() is not None, host.name)  # type: ignore[misc]
        reports = [host.reports() for host in made]
        headlines = [line for host in made for line in host.said().splitlines()]
    assert [len(one) for one in reports] in ([0, 1], [1, 0])
    verdict = (reports[0] or reports[1])[0]["verdict"]
    assert verdict["state"] in ("failed", "hang")  # a hang while the rank takes its time to end
    assert (verdict["kind"], verdict["reason"]) == ("died", "exception")
    assert (verdict["culprits"], verdict["certainty"]) == ([3], "proved")
    assert sum("Rank 3 raised ValueError: bad batch" in line for line in headlines) == len(made)
