"""Each metric says what the pages and the watchdog say, in a form that Prometheus takes."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_pages import event, group, page, write
from node_metrics import RUN, Node
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser
from prometheus_client.registry import CollectorRegistry
from test_evidence_gpu_metrics import H100

from hangwatch.metrics.gpu import gpu_metrics
from hangwatch.model.calls import GroupKey
from hangwatch.model.gpu import NodeGpus
from hangwatch.model.kinds import Certainty, Kind, OpState, Reason, State, What
from hangwatch.model.verdict import RootCause, Verdict
from hangwatch.settings.config import Config
from hangwatch.watchdog.incident.stages import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from hangwatch.model.page import PageEvent, RankPage

S = 1_000_000_000
REFERENCE = (Path(__file__).parents[2] / "docs/metrics.md").read_text("utf-8")
HOSTILE = '"}\n\\ evil{} 1\n# TYPE x\x00\x1b[31m \ud800 \u202e'
HANG = Verdict(
    State.HANG,
    Kind.NEVER_ENTERED,
    Reason.DATA_LOADING,
    Certainty.LIKELY,
    (0, 3, 4, 5, 6, 7),
    cause=RootCause(What.STUCK_LINE, Certainty.LIKELY),
)


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """But what a test adds to the node's clock."""
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes the node of a test."""
    nodes: list[Node] = []

    def made(**options: Any) -> Node:
        nodes.append(Node(tmp_path, **options))
        return nodes[-1]

    yield made
    for node in nodes:
        node.close()


@pytest.fixture
def node(make: Callable[..., Node]) -> Node:
    return make()


def steps(count: int, *, at_ns: int, every_ns: int = S // 10) -> tuple[PageEvent, ...]:
    """So many steps from one line of code, the first of them at at_ns."""
    return tuple(
        event(n, OpState.DONE, issued_ns=at_ns + (n - 1) * every_ns) for n in range(1, count + 1)
    )


def busy(rank: int, node: Node, **changes: Any) -> RankPage:
    """A rank that has just made three steps; rank 1 comes to each 20 ms late."""
    at_ns = node.began_ns - S
    return page(
        rank,
        **{
            "pid": 100 + rank,
            "created_ns": at_ns,
            "phase_ns": at_ns,
            "heartbeat_ns": at_ns + S - S // 10,
            "events": steps(3, at_ns=at_ns + rank * S // 50),
            **changes,
        },
    )


def full(make: Callable[..., Node], **options: Any) -> Node:
    """A node that has something of everything to tell."""
    node = make(run=replace(RUN, versions={"hangwatch": "1.2"}), **options)
    for rank in (0, 1):
        write(node.run_dir, busy(rank, node))
    node.look()
    write(node.run_dir, busy(1, node, groups=(group(4, left=3),), events=(event(4),)))
    node.clock.added_ns += 8 * S
    node.incidents.happen(Event.HANG, HANG)
    node.news.lose("stacks", "no stacks")
    node.look()
    return node


def test_every_scrape_is_clean_for_promtool(make: Callable[..., Node]) -> None:
    found = full(make).exposition()
    done = subprocess.run(
        ["promtool", "check", "metrics"],  # noqa: S607 (Debian's, or the operator's)
        input=found,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_scrape_is_openmetrics_too(make: Callable[..., Node]) -> None:
    registry = CollectorRegistry()
    registry.register(full(make).telemetry.collector)
    parse: Callable[[str], Iterator[Metric]] = parser.text_string_to_metric_families
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    names = [family.name for family in parse(encode(registry).decode())]
    assert len(names) == len(set(names)) >= 30


def test_the_reference_names_each_metric_with_its_type_and_its_labels(
    make: Callable[..., Node],
) -> None:
    node = full(make, extra=[lambda: gpu_metrics(NodeGpus((H100,)))])
    documented = {
        name: (kind, set(filter(None, labels.split(", "))))
        for name, kind, labels in re.findall(
            r"^\| `(hangwatch_\w+)` \| (\w+) \| ([\w, ]*?) ?\|", REFERENCE, re.MULTILINE
        )
    }
    text = node.exposition()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert {name: kind for name, (kind, _) in documented.items()} == types
    for sample in node.samples().all:
        name = re.sub(r"_(bucket|count|sum)$", "", sample.name)
        assert sample.labels.keys() - {"run", "node", "le"} == documented[name][1], name


def test_all_series_have_the_run_and_the_node(make: Callable[..., Node]) -> None:
    for sample in full(make).samples().all:
        assert sample.name.startswith("hangwatch_")
        assert (sample.labels["run"], sample.labels["node"]) == ("r1", "node-a")


def test_before_the_first_look_there_is_the_run(node: Node) -> None:
    assert node.samples().labels("run_info") == [
        {"version": "", "command": "torchrun train.py", "torch": ""}
    ]


def test_a_job_that_nobody_has_joined_yet_has_no_ranks(node: Node) -> None:
    node.look()
    samples = node.samples()
    assert samples.of("ranks_seen") == samples.of("ranks_expected") == {(): 0}
    assert samples.of("suspect_after_seconds") == {(): 10}
    assert samples.of("hang_after_seconds") == {(): 300}


def test_progress_is_told_by_rank_and_group(node: Node) -> None:
    write(node.run_dir, page(0, groups=(group(30, entered=20, completed=29, p2p=4),)))
    write(node.run_dir, page(1, groups=(group(27, completed=-1),), local_world_size=4))
    node.look()
    samples = node.samples()
    world = {"group": "default_pg"}
    assert samples.of("collectives_enqueued_total", **world) == {("0",): 30, ("1",): 27}
    assert samples.of("collectives_entered_total", **world) == {("0",): 20, ("1",): 27}
    assert samples.of("collectives_completed_total", **world) == {("0",): 29}
    assert samples.of("p2p_calls_total", **world) == {("0",): 4, ("1",): 0}
    assert samples.of("world_size") == samples.of("ranks_seen") == {(): 2}
    assert samples.of("ranks_expected") == {(): 4}


def test_a_group_that_was_destroyed_has_no_series(node: Node) -> None:
    write(node.run_dir, page(0, groups=(group(alive=False),)))
    node.look()
    assert node.samples().of("collectives_enqueued_total") == {}


def lag(node: Node) -> dict[tuple[str, ...], float]:
    return node.samples().of("group_lag_collectives")


def test_lag_is_what_a_rank_lacks_of_where_others_were_a_second_ago(node: Node) -> None:
    for second, (ahead, behind) in enumerate([(30, 27), (40, 33), (50, 33), (50, 48), (50, 50)]):
        node.clock.added_ns = second * 2 * S
        write(node.run_dir, page(0, groups=(group(ahead),)))
        write(node.run_dir, page(1, groups=(group(behind),)))
        node.look()
        last = [0, 0, 7, 2, 0][second]
        assert lag(node) == {("default_pg", "0"): 0, ("default_pg", "1"): last}


def test_lag_is_told_of_ranks_that_stay_behind_however_often_one_looks(node: Node) -> None:
    write(node.run_dir, page(0, groups=(group(30),)))
    write(node.run_dir, page(1, groups=(group(27),)))
    for _ in range(30):
        node.clock.added_ns += S // 10
        node.look()
    assert lag(node)["default_pg", "1"] == 3


def test_lag_is_among_members_of_the_same_group(node: Node) -> None:
    for rank in (0, 1):
        own = group(5 + rank, slot=1, name="1", key=GroupKey((rank, rank + 2), "dp"))
        write(node.run_dir, page(rank, groups=(group(9), own), world_size=4))
    for _ in range(3):
        node.clock.added_ns += S
        node.look()
    assert lag(node) == {
        ("default_pg [0, 1]", "0"): 0,
        ("default_pg [0, 1]", "1"): 0,
        ("dp [0, 2]", "0"): 0,
        ("dp [1, 3]", "1"): 0,
    }


def test_there_is_no_lag_behind_a_group_that_is_gone(node: Node) -> None:
    for index, place in enumerate((500, 1)):
        key = GroupKey((0, 1), "eval", index)
        made = group(place, name=str(index), key=key)
        for rank in (0, 1):
            write(node.run_dir, page(rank, pid=100 + rank, groups=(made,)))
        node.clock.added_ns += 2 * S
        node.look()
    assert set(lag(node).values()) == {0}


def test_who_waits_is_told_with_what_it_waits_in(node: Node) -> None:
    stuck = event(4, blocked_ns=node.clock())
    write(node.run_dir, page(0, groups=(group(4, left=3),), events=(stuck,)))
    write(node.run_dir, page(1))
    node.look()
    node.clock.added_ns = 8 * S
    node.look()
    samples = node.samples()
    waiting = samples.of("rank_waiting_seconds")
    assert 8 <= waiting["0",] < 60
    assert waiting["1",] == 0
    assert samples.labels("rank_wait_info") == [
        {"rank": "0", "group": "default_pg", "op": "all_reduce"}
    ]
    assert 8 <= samples.of("rank_since_progress_seconds")["1",] < 60


def test_a_rank_in_a_set_up_call_waits_in_no_group(node: Node) -> None:
    write(node.run_dir, page(0, in_call="init_process_group", in_call_ns=node.clock(), groups=()))
    node.look()
    node.clock.added_ns = 3 * S
    node.look()
    assert node.samples().labels("rank_wait_info") == [
        {"rank": "0", "group": "", "op": "init_process_group"}
    ]


def test_a_rank_says_what_it_is_and_how_it_is_recorded(node: Node) -> None:
    reason = "no C++ module\n" * 20
    write(
        node.run_dir,
        page(
            0,
            recorder_reason=reason,
            swallowed=3,
            disarmed="too many errors",
            beacons="no CUDA",
            torch_lacks="it has no pg_map",
        ),
    )
    node.look()
    samples = node.samples()
    (info,) = samples.labels("rank_info")
    assert info["recorder_reason"].startswith("no C++ module\\n")
    assert len(info["recorder_reason"]) <= 64
    assert (info["beacons"], info["torch_lacks"]) == ("no CUDA", "it has no pg_map")
    assert (info["pid"], info["phase"], info["recorder"]) == (str(os.getpid()), "running", "python")
    assert samples.of("agent_errors_total") == {("0",): 3}
    assert samples.of("agent_disarmed") == {("0",): 1}
    assert samples.of("rank_up") == {("0",): 1}


def test_beats_are_told_of_ranks_that_live(make: Callable[..., Node]) -> None:
    node = make(alive=lambda pid, _: pid != 101)
    now_ns = node.clock()
    write(node.run_dir, page(0, pid=100, heartbeat_ns=now_ns, gil_ns=now_ns - 4 * S))
    write(node.run_dir, page(1, pid=101, heartbeat_ns=now_ns))
    node.look()
    samples = node.samples()
    assert samples.of("rank_up") == {("0",): 1, ("1",): 0}
    assert samples.of("rank_gil_delay_seconds") == {("0",): 4}
    assert list(samples.of("rank_heartbeat_age_seconds")) == [("0",)]
    assert list(samples.of("rank_since_progress_seconds")) == [("0",), ("1",)]
    assert samples.of("rank_waiting_seconds") == {("0",): 0, ("1",): 0}


def test_a_recorder_whose_beats_all_need_the_gil_tells_their_age(node: Node) -> None:
    write(node.run_dir, page(0, gil_ns=node.clock() - 4 * S))
    node.look()
    assert 4 <= node.samples().of("rank_gil_delay_seconds")["0",] < 60
    assert node.samples().of("rank_heartbeat_age_seconds") == {}


def test_who_comes_late_is_told_by_group(node: Node) -> None:
    for rank in (0, 1):
        write(node.run_dir, busy(rank, node))
    node.look()
    samples = node.samples()
    buckets = samples.of("arrival_spread_seconds_bucket", group="default_pg")
    assert buckets["0.01",] == 0
    assert buckets["0.03",] == buckets["+Inf",] == 3
    assert samples.of("arrivals_last_total", group="default_pg") == {("0",): 0, ("1",): 3}
    delay = samples.of("arrival_delay_seconds_total", group="default_pg")
    assert delay["0",] == 0
    assert delay["1",] == pytest.approx(0.06)
    assert samples.of("rank_loop_period_seconds")["0",] == pytest.approx(0.1)


def test_rings_are_read_every_few_seconds_and_only_where_somebody_moves(node: Node) -> None:
    def counted() -> float:
        return node.samples().of("arrival_spread_seconds_count")["default_pg",]

    def go_on(count: int) -> None:
        for rank in (0, 1):
            ring = steps(count, at_ns=node.clock())
            write(node.run_dir, busy(rank, node, groups=(group(count),), events=ring))

    go_on(3)
    node.look()
    go_on(4)
    node.look()
    assert counted() == 3
    node.clock.added_ns += 60 * S
    node.look()
    assert counted() == 4


def test_a_verdict_is_there_while_its_incident_stands(node: Node) -> None:
    node.look()
    assert node.samples().labels("verdict_info") == []
    node.incidents.happen(Event.HANG, HANG)
    node.look()
    assert node.samples().labels("verdict_info") == [
        {
            "state": "hang",
            "kind": "never_entered",
            "reason": "data_loading",
            "cause": "stuck_line",
            "certainty": "likely",
            "culprits": "0, 3-7",
        }
    ]
    node.incidents.happen(Event.PROGRESS)
    node.look()
    assert node.samples().labels("verdict_info") == []
    assert node.samples().labels("verdicts_total") == [{"state": "hang", "kind": "never_entered"}]


def test_ten_thousand_culprits_fit_into_a_label(node: Node) -> None:
    verdict = replace(HANG, culprits=tuple(range(0, 20_000, 2)))
    node.incidents.happen(Event.HANG, verdict)
    node.look()
    (found,) = node.samples().labels("verdict_info")
    assert found["culprits"].startswith("0, 2, 4, ")
    assert len(found["culprits"]) == 64


def test_the_watchdog_tells_of_itself(node: Node) -> None:
    node.look()
    node.news.lose("page:x", "cannot read x")
    node.news.lose("page:y", "cannot read y")
    node.clock.added_ns += 3 * S
    node.look(failures=2)
    samples = node.samples()
    assert samples.of("watchdog_failures_total") == {(): 2}
    assert samples.of("watchdog_lost") == {("page",): 2}
    assert samples.of("watchdog_look_seconds_count") == {(): 2}
    assert 2.5 <= samples.of("watchdog_loop_delay_seconds")[()] < 60


def test_a_watchdog_that_got_stuck_is_late(node: Node) -> None:
    node.look()
    node.look()
    assert node.samples().of("watchdog_loop_delay_seconds")[()] < 1
    node.clock.added_ns += 30 * S
    assert 29 <= node.samples().of("watchdog_loop_delay_seconds")[()] < 60


def test_further_families_are_served_and_may_fail(make: Callable[..., Node]) -> None:
    def gpu() -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("hangwatch_gpu_power_watts", "Power.", 70.0)

    def broken() -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("hangwatch_half", "Not to be seen alone.", 1.0)
        raise RuntimeError("the driver is gone")

    node = make(extra=(broken, gpu), config=Config(metrics_addr="off"))

    async def scrape_twice() -> None:
        node.telemetry.open()
        for _ in range(2):
            samples = await asyncio.to_thread(node.samples)
        assert samples.of("gpu_power_watts") == {(): 70}
        assert samples.of("half") == {}

    asyncio.run(scrape_twice())
    assert node.said.read_text().count("the driver is gone") == 1


def test_hostile_strings_stay_labels(make: Callable[..., Node]) -> None:
    node = make(run=replace(RUN, command=(HOSTILE, f"{HOSTILE}.py")))
    content = page(
        0,
        recorder_reason=HOSTILE,
        beacons=HOSTILE,
        groups=(group(3, left=2, key=GroupKey((0, 1), HOSTILE)),),
        events=(event(op=HOSTILE, blocked_ns=node.clock()),),
    )
    write(node.run_dir, content)
    node.look()
    node.clock.added_ns = 5 * S
    node.look()
    samples = node.samples()
    assert all(name.startswith("hangwatch_") for name in samples.series())
    (wait,) = samples.labels("rank_wait_info")
    assert wait["op"].startswith('"}\\n\\ evil{} 1')
    assert wait["group"].startswith('"}\\n\\ evil{} 1')
    assert all(text.isprintable() for one in samples.all for text in one.labels.values())


def test_there_is_no_lag_in_what_cpp_has_issued_on_all(node: Node) -> None:
    for number in (0, 1):
        write(node.run_dir, page(number, groups=(group(30, entered=20 + number),)))
    for _ in range(3):
        node.clock.added_ns += S
        node.look()
    assert set(lag(node).values()) == {0}
