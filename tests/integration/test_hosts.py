"""A job on several hosts, each with its own watchdog: one verdict for all of it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from hosts import Host, ahead, everywhere, hosts, launch, needs_hosts, recovered
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = [
    pytest.mark.quiet,
    needs_hosts,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
HOUR_S = 3600


def over(made: Sequence[Host]) -> None:
    """Wait until the job has ended well."""
    until(lambda: all(host.exit_code() is not None for host in made), "the job's end")
    assert [host.exit_code() for host in made] == [0] * len(made)


def only_report(made: Sequence[Host]) -> tuple[Host, dict[str, Any]]:
    """The one report of the job, and who has written it."""
    ((writer, report),) = [(host, report) for host in made for report in host.reports()]
    return writer, report


def test_two_ranks_get_stuck_one_after_the_other_each_on_another_host(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        stays = ["3", "20", "0", "40"]
        launch(made, "steps.py", "60", *stays, options=["--suspect-after=2", "--hang-after=5"])
        everywhere(made, "SLOW")
        everywhere(made, "HANG")
        writer, report = only_report(made)
        (tmp_path / "go-20").touch()
        recovered(made)
        everywhere(made, "SLOW", 2)
        (tmp_path / "go-40").touch()
        over(made)
        reports = [report for host in made for report in host.reports()]
    verdict = report["verdict"]
    assert (verdict["state"], verdict["kind"]) == ("hang", "never_entered")
    assert (verdict["culprits"], verdict["victims"]) == ([3], [0, 1, 2])
    assert verdict["site"]["source"] == "time.sleep(0.05)  # culprit"
    assert {rank["rank"]: rank["node"] for rank in report["ranks"]} == {
        0: "node-0",
        1: "node-0",
        2: "node-1",
        3: "node-1",
    }
    assert report["unseen"] == []
    (other,) = [host for host in made if host is not writer]
    for line in other.verdicts()[:2]:
        assert verdict["headline"] in line
        assert f"(report on {writer.name}: {writer.where}" in line
    assert sorted(report["verdict"]["culprits"] for report in reports) == [[0], [3]]


def test_a_culprit_two_groups_away_on_another_host(tmp_path: Path) -> None:
    with hosts(tmp_path) as made:
        launch(made, "pipeline.py", options=["--suspect-after=2", "--hang-after=4"])
        everywhere(made, "HANG")
        _, report = only_report(made)
    verdict = report["verdict"]
    assert (verdict["kind"], verdict["culprits"]) == ("never_entered", [3])
    assert verdict["victims"] == [0, 1, 2]
    assert (verdict["group"]["desc"], verdict["group"]["ranks"]) == ("stages_2_3", [2, 3])
    assert verdict["site"]["source"] == "time.sleep(0.05)  # culprit"


@pytest.mark.parametrize(
    ("network", "static", "wall_clock"),
    [
        pytest.param({}, True, False, marks=pytest.mark.campaign, id="without a rendezvous"),
        pytest.param({"version": 6}, False, False, id="IPv6 alone"),
        pytest.param({"ahead_s": HOUR_S}, False, False, id="monotonic clocks an hour apart"),
        # Torchrun's own rendezvous takes nodes for dead whose wall clock is late.
        pytest.param({}, True, True, marks=pytest.mark.campaign, id="wall clocks an hour apart"),
    ],
)
def test_a_rank_stuck_on_another_host_however_they_meet(
    tmp_path: Path,
    network: dict[str, int],
    static: bool,  # noqa: FBT001 (a parameter of the test)
    wall_clock: bool,  # noqa: FBT001
) -> None:
    with hosts(tmp_path, **network) as made:
        options = ["--suspect-after=2", "--hang-after=100"]
        env = {1: ahead(tmp_path)} if wall_clock else {}
        launch(made, "steps.py", "25", "3", "20", options=options, env=env, static=static)
        everywhere(made, "SLOW")
        _, report = only_report(made)
        (tmp_path / "go-20").touch()
        over(made)
        assert all("the job recovered" in host.said() for host in made)
        assert not any(host.verdicts("HANG") for host in made)
    verdict = report["verdict"]
    assert (verdict["culprits"], verdict["victims"]) == ([3], [0, 1, 2])
    assert 1 < verdict["stuck_age_s"] < HOUR_S / 2
    assert verdict["site"]["source"] == "time.sleep(0.05)  # culprit"
    assert report["unseen"] == []
