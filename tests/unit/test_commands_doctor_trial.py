"""What the doctor makes of a trial, and how it shows what it has found."""

from __future__ import annotations

import io
import json
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.commands import timing
from hangwatch.commands.doctor import command, outcome
from hangwatch.commands.doctor.findings import figures, slow_pairs, trial_findings
from hangwatch.commands.doctor.machine import gpus_seen, in_time, surroundings
from hangwatch.commands.doctor.outcome import Outcome, Stage
from hangwatch.commands.doctor.trial import Trial
from hangwatch.preflight import Finding, Grade, fail, ok, warn
from hangwatch.preflight.job import Job, job

if TYPE_CHECKING:
    from collections.abc import Sequence

TWO_NODES = Job("torchrun", 2, 0, "node-0", 29400, 2)
COMMAND = ["torchrun", "--nnodes=2", "trial.py"]


def rank(number: int, host: str = "", **changes: Any) -> dict[str, Any]:
    """What a rank says of itself; two ranks a node."""
    host = host or f"node-{number // 2}"
    versions = {"torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.3", "hangwatch": "0.1.0"}
    facts = {"host": host, "node": f"/{host}", "gpus": 2, "device": f"GPU-{number % 2}"}
    facts |= {"versions": {**versions, **changes.pop("versions", {})}, "environment": {}}
    return {"rank": number, **facts, **changes}


def times(*round_trips_s: float, **first: float) -> dict[str, Any]:
    """What was measured, with a pair of nodes for each round trip."""
    pairs = [
        {"ranks": [2 * at, 2 * at + 2], "round_trip_s": seconds, "bytes_per_s": 1e10}
        for at, seconds in enumerate(round_trips_s)
    ]
    if first:
        pairs[0].update(first)
    reduces = [
        {"bytes": 4, "seconds": 3e-5},
        {"bytes": 256 << 20, "seconds": 0.005, "bus_bytes_per_s": 9.4e10},
    ]
    return {"barrier_s": 4e-5, "all_reduce": reduces, "pairs": pairs}


def done(ranks: Sequence[dict[str, Any]], **changes: Any) -> Trial:
    """A trial that has come to its end."""
    values = {"ranks": list(ranks), "times": times(2e-5), "backend": "nccl", **changes}
    found = Outcome(0, len(ranks), Stage.DONE, **values)
    return Trial(COMMAND, 0, 3.25, [found])


def stopped(stage: Stage, **changes: Any) -> Trial:
    """A trial whose ranks have got so far."""
    ranks = [rank(number) for number in range(2)]
    found = Outcome(0, 4, stage, **{"ranks": ranks, "backend": "gloo", **changes})
    return Trial(COMMAND, 1, 9.0, [found], output=["[rank0]: RuntimeError: it broke"])


def told(trial: Trial, check: str, grade: Grade) -> list[Finding]:
    return [
        one for one in trial_findings(trial, TWO_NODES) if (one.check, one.grade) == (check, grade)
    ]


def test_a_trial_that_went_well_is_all_fine() -> None:
    trial = done([rank(number) for number in range(4)])
    assert {finding.grade for finding in trial_findings(trial, TWO_NODES)} == {Grade.OK}
    (met,) = told(trial, "trial", Grade.OK)
    assert met.what == "4 ranks on 2 nodes met and reduced by nccl, 3.2 s in all"
    (taken,) = told(trial, "times", Grade.OK)
    assert taken.what == ("barrier 40 us, all_reduce of 4 B 30 us, of 256 MiB 5 ms (94 GB/s)")
    (link,) = told(trial, "links", Grade.OK)
    assert link.what == "1 pair of nodes, node-0 and node-1: round trip 20 us, 10 GB/s"


@pytest.mark.parametrize(
    ("name", "grade"),
    [("torch", Grade.FAIL), ("nccl", Grade.FAIL), ("hangwatch", Grade.WARN)],
)
def test_versions_that_differ_are_told_by_node(name: str, grade: Grade) -> None:
    ranks = [rank(0), rank(1), *(rank(number, versions={name: "1.2"}) for number in (2, 3))]
    (finding,) = told(done(ranks), "versions", grade)
    assert finding.what.startswith(f"{name} differs: ")
    assert finding.what.endswith(" on node-0; 1.2 on node-1")


def test_variables_that_have_to_be_alike_and_are_not() -> None:
    ranks = [rank(0), rank(2, environment={"NCCL_ALGO": "Ring"})]
    (finding,) = told(done(ranks), "variables", Grade.FAIL)
    assert finding.what == "NCCL_ALGO differs: - on node-0; Ring on node-1"


def test_two_ranks_on_one_gpu() -> None:
    ranks = [rank(0), rank(1, device="GPU-0"), rank(2), rank(3)]
    (finding,) = told(done(ranks), "devices", Grade.FAIL)
    assert finding.what == "ranks 0 and 1 of node-0 share GPU GPU-0: NCCL refuses that"
    without = [rank(number, device="") for number in range(4)]
    assert told(done(without), "devices", Grade.FAIL) == []


def test_a_slow_pair_of_nodes_stands_out() -> None:
    ranks = [rank(number) for number in range(10)]
    for seconds, said in ((1e-3, "1 ms"), (3.768, "3.77 s"), (8e-5, "80 us")):
        trial = done(ranks, times=times(seconds, 2e-5, 2e-5, 2e-5))
        (finding,) = told(trial, "links", Grade.WARN)
        assert finding.what.startswith(f"between node-0 and node-1: round trip {said}, ")
    of_one_node = slow_pairs(times(2e-5, 1e-3, 1e-3)["pairs"])
    assert [pair["ranks"] for pair in of_one_node] == [[2, 4], [4, 6]]
    even = times(2.5e-5, 2e-5, 2e-5)["pairs"]
    assert slow_pairs(even) == []
    assert slow_pairs(times(2e-5, 2e-5, 2e-5, bytes_per_s=1e9)["pairs"]) != []
    assert slow_pairs(times(1.0, 2e-5)["pairs"]) == []


def test_ranks_that_did_not_come_are_named() -> None:
    (finding,) = told(stopped(Stage.ROLL_CALL, missing=[2, 3]), "trial", Grade.FAIL)
    assert finding.what.startswith("ranks 2 and 3 of 4 did not come: 2 ranks of node-0 waited")
    assert "node-0:29400" in finding.remedy


def test_connections_that_fail_are_told_once_for_each_target() -> None:
    broken = [
        {"from": f"node-{one}", "to": "node-7", "address": "10.0.0.7", "why": "refused"}
        for one in range(3)
    ]
    (finding,) = told(stopped(Stage.CONNECTIONS, broken=broken), "trial", Grade.FAIL)
    assert finding.what == (
        "node-0, node-1, node-2 cannot connect to node-7, where gloo listens at 10.0.0.7: refused"
    )
    assert "firewall" in finding.remedy


def test_what_sticks_later_is_told_with_the_verdict_of_the_watch() -> None:
    trial = stopped(Stage.INIT, error="RuntimeError: timed out")
    trial.reports = [{"verdict": {"headline": "Rank 1 never came.", "advice": ["Look there."]}}]
    (finding,) = told(trial, "trial", Grade.FAIL)
    assert "init_process_group failed with gloo: RuntimeError: timed out" in finding.what
    assert finding.remedy == "see the verdict and: [rank0]: RuntimeError: it broke"
    (verdict,) = told(trial, "verdict", Grade.FAIL)
    assert (verdict.what, verdict.remedy) == ("Rank 1 never came.", "Look there.")
    (store,) = told(stopped(Stage.STORE, ranks=[], error="refused"), "trial", Grade.FAIL)
    assert "cannot join the store" in store.what


def test_a_launcher_that_starts_no_rank() -> None:
    ended = Trial(COMMAND, 2, 1.0, output=["usage: ...", "torchrun: error: no such option"])
    (finding,) = trial_findings(ended, TWO_NODES)
    assert finding.what.endswith("before any rank started: torchrun: error: no such option")
    waits = Trial(COMMAND, None, 120.0, peers=["10.77.0.2"])
    (finding,) = trial_findings(waits, TWO_NODES)
    assert finding.what == (
        "torchrun started no rank within 120 s: it waits for 2 nodes; connected to this one:"
        " 10.77.0.2"
    )
    sleeps = Trial(COMMAND, None, 120.0, output=["one moment"])
    (finding,) = trial_findings(sleeps, Job("torchrun", 1, 0))
    assert finding.what == (
        "torchrun started no rank within 120 s, and does not wait for another node: one moment"
    )
    alone = Trial(COMMAND, 0, 1.0, [Outcome(-1, 0, error="no rank")])
    (finding,) = trial_findings(alone, Job("python"))
    assert (finding.grade, finding.what) == (Grade.WARN, "no rank")


def test_the_figures_are_plain_json() -> None:
    for trial in (done([rank(0)]), stopped(Stage.ROLL_CALL, missing=[1]), Trial(COMMAND)):
        content = json.loads(json.dumps(figures(trial)))
        assert content["command"] == COMMAND
        assert set(content) == set(figures(Trial(COMMAND)))


def test_each_key_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")
    answer = command.as_json([ok("a", "b")], figures(done([rank(0), rank(2)])))
    keys = {*answer, *answer["findings"][0], *answer["trial"], *answer["trial"]["ranks"][0]}
    measured = answer["trial"]["times"]
    keys |= {*measured, *measured["all_reduce"][1], *measured["pairs"][0], *Stage}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_what_a_rank_leaves_is_read_again(tmp_path: Path) -> None:
    left = Outcome(3, 4, Stage.ROLL_CALL, missing=[1], ranks=[rank(3)])
    left.leave(str(tmp_path / "elsewhere"))
    left.leave(str(tmp_path))
    assert outcome.read(tmp_path) == [left]
    assert outcome.longest_s(120.0) > outcome.init_s(120.0) + 120.0


class FakeStore:
    """A store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> str:
        return self.values[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def multi_get(self, keys: Sequence[str]) -> list[str]:
        return [self.values[key] for key in keys]


def test_the_roll_call_knows_who_is_missing_and_who_leads() -> None:
    store = FakeStore()
    for number in (0, 2, 3):
        store.set(f"rank/{number}", json.dumps(rank(number)))
    roll = outcome.call_roll(store, 5, rank(5), 6, 0.0)
    assert roll.missing == [1, 4]
    assert roll.leaders() == [0, 2, 5]


def test_a_loopback_address_of_another_node_is_no_address() -> None:
    store = FakeStore()
    roll = outcome.Roll({number: rank(number) for number in range(4)}, [])
    store.set("address/2", json.dumps(["127.0.1.1", 1]))
    store.set("connected/2", "[]")
    (failure,) = outcome.try_connections(store, 0, roll, "127.0.0.1", 0.0)
    assert (failure["from"], failure["to"]) == ("node-0", "node-1")
    assert "loopback" in failure["why"]


def test_nodes_connect_to_all_others_unless_they_are_many() -> None:
    assert list(outcome.partners([0, 8, 16], 8)) == [0, 16]
    many = list(range(0, 800, 8))
    assert list(outcome.partners(many, 80)) == [0, 72, 88]
    assert list(outcome.partners(many, 0)) == [8, 792]


def test_a_finding_is_a_line_in_a_log_and_folded_on_a_terminal() -> None:
    finding = warn("gloo", "one two three " * 10, "do this")
    line, remedy = command.finding_lines(finding, None)
    assert line.startswith("warn  gloo       one two")
    assert remedy == f"{'-> do this':>27}"
    folded = list(command.finding_lines(finding, 60))
    assert len(folded) == 5
    assert all(len(line) <= 60 for line in folded)
    assert command.columns(io.StringIO()) is None


def test_the_summary_counts_and_the_worst_grade_counts() -> None:
    found = [ok("a", "x"), warn("b", "y", "z"), fail("c", "y", "z"), warn("d", "y", "z")]
    assert command.summary(found) == "1 fail, 2 warn"
    assert command.summary(found[:1]) == "all is well"
    content = command.as_json(found, None)
    assert (content["schema"], content["grade"]) == ("hangwatch.doctor/1", "fail")
    assert content["findings"][0] == {"check": "a", "grade": "ok", "what": "x", "remedy": None}
    assert command.as_json([], None)["grade"] == "ok"


def test_a_name_server_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "127.0.0.1" in in_time("localhost")
    never = threading.Event()

    def silent(_: str) -> tuple[str, ...]:
        never.wait()
        return ()

    with pytest.raises(socket.gaierror):
        in_time("no-such-name.invalid")
    monkeypatch.setattr(timing, "DOCTOR_RESOLVE_S", 0.01)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        in_time("localhost", silent)
    never.set()


def test_gpus_are_counted_by_their_devices(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus_seen(str(tmp_path)) == 2
    assert gpus_seen(str(tmp_path / "nowhere")) == 0


def test_several_nodes_without_a_place_to_meet_fail() -> None:
    environ = {"HANGWATCH_SUSPECT_AFTER": "soon"}
    found = list(surroundings(environ, job(environ, ["torchrun", "--nnodes=2", "a.py"])))
    failed = {finding.check: finding.what for finding in found if finding.grade is Grade.FAIL}
    assert failed["rendezvous"] == "2 nodes, and no address where they meet"
    assert "HANGWATCH_SUSPECT_AFTER soon" in failed["timeouts"]
