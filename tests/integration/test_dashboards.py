"""Dashboards and alerts on a real job with a real stall, by a real Prometheus."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import harness
import pytest
from monitoring import all_panels, boards
from prometheus_server import Prometheus, Series, alertmanager, prometheus
from waiting import BOUND_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.quiet
RUN = "exp.1"
"""With a character that is special in a regular expression."""
WORLD = 3
CULPRIT = "1"
HEALTHY_S, SEEN_S = 12.0, 60.0
READABLE = "NVML"
"""The panel that has data without a GPU, too: it says why there is none to be read."""
ONLY_WHILE_IT_WAITS = "hangwatch_rank_wait_info"


@dataclass(frozen=True, slots=True)
class Job:
    """A job that is watched and scraped."""

    prometheus: Prometheus
    received: list[dict[str, Any]]
    stall: Path
    over: Path
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """Have the job come to its end."""
        self.over.touch()
        assert self.process.wait(BOUND_S) == 0


@contextmanager
def _job(where: Path) -> Iterator[Job]:
    base = where / "base"
    base.mkdir()
    stall, over, token = where / "stall", where / "over", uuid.uuid4().hex
    command = (
        *(sys.executable, "-m", "hangwatch", "--run-id", RUN, "--metrics-addr", "127.0.0.1:0"),
        *("--suspect-after", "4", "--hang-after", "7", "--report-dir", str(where / "reports")),
        *("torchrun", "--standalone", f"--nproc-per-node={WORLD}"),
        *(str(harness.PROGRAMS / "stalls_while.py"), str(stall), str(over)),
    )
    with (
        alertmanager(where / "alertmanager") as (port, received),
        prometheus(where / "prometheus", base / "hangwatch-metrics", port) as server,
        (where / "stdout").open("wb") as stdout,
    ):
        process = subprocess.Popen(  # noqa: S603 (the command is made above)
            command,
            env=harness.environment({"HANGWATCH_DIR": str(base)}) | {harness.TOKEN: token},
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            start_new_session=True,
        )
        try:
            until(lambda: "training" in (where / "stdout").read_text(), "the job")
            yield Job(server, received, stall, over, process)
        finally:
            harness.end(process, token)


def _as_grafana(target: Mapping[str, Any], board: Mapping[str, Any]) -> str:
    """The expression of a query as Grafana sends it, with all nodes and ranks chosen.

    A value of a variable that may have several is escaped for a regular expression
    and for the string that this stands in; "All" is what the variable says.
    """
    scraped_s = int(target.get("interval", "1s").removesuffix("s"))
    values = {"__rate_interval": f"{4 * scraped_s}s", "__range": f"{SEEN_S:g}s"}
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        values[variable["name"]] = variable.get("allValue") if variable.get("multi") else RUN
    if board["uid"] == "hangwatch-rank":
        values["rank"] = CULPRIT
    if board["uid"] == "hangwatch-fleet":
        values["run"] = f"({RUN}|other)".replace(".", "\\\\.")
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), target["expr"])


def _answers(job: Job) -> Iterator[tuple[str, str, list[Series]]]:
    """Each query of each panel: where, it, its answer. All are asked, those on GPUs untold."""
    for name, board in boards().items():
        gpus = [panel for row in board["panels"] for panel in row.get("panels", [])]
        for panel in all_panels(board):
            for target in panel["targets"]:
                text = _as_grafana(target, board)
                ask = job.prometheus.now if target.get("instant") else _over(job)
                answer = ask(text)
                if panel not in gpus or panel["title"] == READABLE:
                    yield f"{name}: {panel['title']}", text, answer


def _over(job: Job) -> Any:
    return lambda text: job.prometheus.over(text, SEEN_S)


def _panel(job: Job, name: str, title: str, target: int = 0) -> list[Series]:
    """What one query of a panel is now."""
    board = boards()[name]
    panel = next(panel for panel in all_panels(board) if panel["title"] == title)
    return job.prometheus.now(_as_grafana(panel["targets"][target], board))


def _value(series: list[Series]) -> float:
    assert len(series) == 1, series
    return float(series[0]["value"][1])


def _values(series: list[Series]) -> set[str]:
    return {one["value"][1] for one in series}


def _by_rank(series: list[Series]) -> dict[str, str]:
    return {one["metric"]["rank"]: one["value"][1] for one in series}


def test_a_stall_is_seen_told_and_over(tmp_path: Path) -> None:
    with _job(tmp_path) as job:
        _healthy(job)
        job.stall.touch()
        _stalled(job)
        job.stall.unlink()
        _going_on(job)
        job.end()
        _ended(job)


def _healthy(job: Job) -> None:
    """All panels of a healthy job have data, and nobody is woken."""
    enough = f"count_over_time(hangwatch_run_info[60s]) >= {HEALTHY_S:g}"
    until(lambda: job.prometheus.now(enough), "scrapes")
    # Rates need two scrapes of what they are of, which a loaded machine may take long to see.
    with suppress(TimeoutError):
        until(lambda: not _without_data(job, ONLY_WHILE_IT_WAITS), "data in all panels")
    assert _without_data(job, ONLY_WHILE_IT_WAITS) == []
    _choices(job)
    until(lambda: _value(_panel(job, "job", "Is it moving?")) == 0, "the job to move")
    until(lambda: not job.prometheus.alerts(), "alerts of a slow start to end")
    assert {one["metric"]["state"] for one in _panel(job, "job", "Verdict")} == {"no verdict"}
    moves = {"0"}
    until(lambda: _values(_panel(job, "job", "Ranks over time")) == moves, "ranks to move")
    assert [_value(_panel(job, "job", "Ranks", at)) for at in (0, 1)] == [WORLD, WORLD]
    assert not job.prometheus.rule_errors()


def _without_data(job: Job, but: str | None = None) -> list[str]:
    """The expressions that give nothing, but for those that contain ``but``."""
    return [
        f"{where}: {text}"
        for where, text, answer in _answers(job)
        if not answer and (but is None or but not in text)
    ]


def _choices(job: Job) -> None:
    """What the variables of the dashboards offer."""
    for name, board in boards().items():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            query = _as_grafana({"expr": variable["query"]["query"]}, board)
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
            assert asked is not None, query
            offered = {one["metric"][asked[2]] for one in job.prometheus.now(asked[1])}
            known = {"run": {RUN}, "rank": {str(rank) for rank in range(WORLD)}}
            assert offered == known.get(variable["name"], offered), f"{name}: {query}"
            assert offered, f"{name}: {query}"


def _stalled(job: Job) -> None:
    """The panels name the rank that is stuck, and the alerts go out."""
    fired = {"HangwatchStalled", "HangwatchHang"}
    until(lambda: fired <= job.prometheus.alerts().keys(), "the alerts")
    alert = job.prometheus.alerts()["HangwatchHang"]
    assert (alert["run"], alert["culprits"], alert["kind"]) == (RUN, CULPRIT, "never_entered")
    with suppress(TimeoutError):
        until(lambda: not _without_data(job), "data in all panels")
    assert _without_data(job) == []

    assert _value(_panel(job, "job", "Is it moving?")) == 4
    assert _value(_panel(job, "job", "Of its patience")) > 1
    (verdict,) = _panel(job, "job", "Verdict")
    assert (verdict["metric"]["state"], verdict["metric"]["culprits"]) == ("hang", CULPRIT)
    # Once it has lasted longer than usual, which the job itself has shown.
    states = {"0": "1", "1": "2", "2": "1"}
    until(lambda: _by_rank(_panel(job, "job", "Ranks over time")) == states, "their states")
    waits = {one["metric"]["rank"] for one in _panel(job, "job", "Who is behind", 3)}
    assert waits == {"0", "2"}
    assert _by_rank(_panel(job, "job", "Who is behind", 1)) == {"0": "0", "1": "1", "2": "0"}
    last = _panel(job, "job", "Last to arrive")
    assert max(last, key=lambda one: float(one["value"][1]))["metric"]["rank"] == CULPRIT
    assert _value(_panel(job, "fleet", "Hang or failed")) == 1
    assert not job.prometheus.rule_errors()

    hang = {"status": "firing", "name": "HangwatchHang"}
    (sent,) = until(lambda: _sent(job, **hang)[:1], "the message of the hang")
    assert sent["annotations"]["summary"] == f"{RUN} hangs: rank {CULPRIT}, never_entered"


def _sent(job: Job, *, status: str, name: str) -> list[dict[str, Any]]:
    return [
        one
        for one in list(job.received)
        if one["status"] == status and one["labels"]["alertname"] == name
    ]


def _going_on(job: Job) -> None:
    """The alerts are taken back."""
    until(lambda: not job.prometheus.alerts(), "the end of the alerts")
    until(lambda: _sent(job, status="resolved", name="HangwatchHang"), "the message of the end")
    until(lambda: _value(_panel(job, "job", "Is it moving?")) == 0, "the job to move")


def _ended(job: Job) -> None:
    """The target is gone with the job, without an alert; the fleet still knows of the hang."""
    up = 'up{job="hangwatch"}'
    until(lambda: not job.prometheus.now(up), "the target's end")
    assert not job.prometheus.alerts()
    verdicts = _panel(job, "fleet", "Verdicts in the time shown")
    assert {one["metric"]["state"] for one in verdicts} >= {"hang"}
