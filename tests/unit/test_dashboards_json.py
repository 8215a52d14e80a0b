"""The dashboards as committed: what build.py writes, and what Grafana and Prometheus take."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from monitoring import DASHBOARDS, GRAFANA, RULES, all_panels, boards, expressions, tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = 24
NAMES = ("fleet", "job", "rank")


def _panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, board in boards().items():
        for panel in all_panels(board):
            yield name, panel


def test_the_committed_json_is_what_build_writes(tmp_path: Path) -> None:
    tool(sys.executable, str(DASHBOARDS / "build.py"), str(tmp_path))
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in GRAFANA.glob("*.json")}
    assert sorted(written) == [f"{name}.json" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_grafanas_own_schema_reads_and_writes_it_unchanged(name: str) -> None:
    board = boards()[name]
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    for annotation in board["annotations"]["list"]:
        for field in ("step", "tagKeys", "textFormat", "titleFormat", "useValueForTime"):
            annotation.pop(field)  # the data source's own, which the schema leaves out
    assert again == board


def test_each_panel_says_what_it_shows_and_asks_the_chosen_data_source() -> None:
    for name, panel in _panels():
        where = f"{name}: {panel['title']}"
        assert len(panel["description"]) > 5, where
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, where
        assert panel["targets"], where


def test_figures_have_units() -> None:
    for name, panel in _panels():
        if panel["type"] != "timeseries":
            continue
        assert "unit" in panel["fieldConfig"]["defaults"], f"{name}: {panel['title']}"


@pytest.mark.parametrize("name", NAMES)
def test_panels_fill_rows_of_24_columns_without_overlap(name: str) -> None:
    board = boards()[name]
    ids = [panel["id"] for panel in [*board["panels"], *all_panels(board)]]
    assert len(set(ids)) == len({*map(id, [*board["panels"], *all_panels(board)])})
    taken: set[tuple[int, int]] = set()
    tops: dict[int, int] = {}
    for panel in [*all_panels(board), *(p for p in board["panels"] if p["type"] == "row")]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= COLUMNS, panel["title"]
        taken |= cells
        tops[at["y"]] = tops.get(at["y"], 0) + at["w"]
    collapsed = {p["gridPos"]["y"] for row in board["panels"] for p in row.get("panels", [])}
    assert {width for top, width in tops.items() if top not in collapsed} == {COLUMNS}


def test_only_the_gpu_row_is_collapsed() -> None:
    for name, board in boards().items():
        rows = [panel for panel in board["panels"] if panel["type"] == "row"]
        assert [row["title"] for row in rows if row["collapsed"]] == ["GPUs"], name


def test_columns_of_tables_are_queries_and_labels_that_exist() -> None:
    for name, panel in _panels():
        if panel["type"] != "table":
            continue
        where = f"{name}: {panel['title']}"
        asked = [target["refId"] for target in panel["targets"]]
        many = len(asked) > 1
        rename = panel["transformations"][2]["options"]["renameByName"]
        text = " ".join(target["expr"] for target in panel["targets"])
        for column in rename:
            if column.startswith("Value"):
                assert (column == "Value") is not many, where
                assert not many or column.removeprefix("Value #") in asked, where
            else:
                assert re.search(rf"\b{column}\b", text), f"{where}: {column}"
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["options"] in rename.values(), where
        for order in panel["options"].get("sortBy", []):
            assert order["displayName"] in rename.values(), where


def test_overrides_of_lines_name_a_legend() -> None:
    for name, panel in _panels():
        if panel["type"] != "timeseries":
            continue
        legends = {target.get("legendFormat") for target in panel["targets"]}
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["options"] in legends, f"{name}: {panel['title']}"


def test_variables_are_defined_where_they_are_used() -> None:
    builtin = {"__rate_interval", "__range", "__url_time_range", "1"}
    for name, board in boards().items():
        defined = {variable["name"] for variable in board["templating"]["list"]}
        for text in [*expressions(board), *_queries(board)]:
            used = set(re.findall(r"\$\{?(\w+)", text))
            assert used <= defined | builtin, f"{name}: {text}"


def _queries(board: dict[str, Any]) -> list[str]:
    return [
        variable["query"]["query"]
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]


def test_links_lead_to_dashboards_and_to_variables_that_these_have() -> None:
    by_uid = {board["uid"]: board for board in boards().values()}
    links = re.findall(r"/d/([\w-]+)\?([^\"]*)", "".join(p.read_text() for p in _json_files()))
    assert len(links) >= 3
    for uid, parameters in links:
        defined = {variable["name"] for variable in by_uid[uid]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", parameters)) <= defined


def _json_files() -> list[Path]:
    return sorted(GRAFANA.glob("*.json"))


def test_every_expression_parses(tmp_path: Path) -> None:
    groups: list[dict[str, Any]] = []
    for name, board in boards().items():
        texts = [*expressions(board), *(a["expr"] for a in board["annotations"]["list"])]
        rules = [
            {"record": f"test:{name}:{index}", "expr": _substituted(text)}
            for index, text in enumerate(texts)
        ]
        groups.append({"name": name, "rules": rules})
    path = tmp_path / "rules.json"  # JSON is YAML
    path.write_text(json.dumps({"groups": groups}))
    said = tool("promtool", "check", "rules", "--lint=none", str(path))
    assert f"{sum(len(group['rules']) for group in groups)} rules found" in said


def _substituted(text: str) -> str:
    for name, value in (("$__rate_interval", "20s"), ("$__range", "1800s")):
        text = text.replace(name, value)
    return text


def test_the_rules_hold_what_their_tests_say() -> None:
    tests = sorted((RULES.parent / "tests").glob("*.yml"))
    tool("promtool", "test", "rules", *map(str, tests))
    tested = "".join(path.read_text() for path in tests)
    for alert in re.findall(r"- alert: (\w+)", RULES.read_text()):
        assert alert in tested


@pytest.mark.parametrize(
    "command",
    [
        ["promtool", "check", "config", "prometheus/prometheus.yml"],
        ["promtool", "check", "rules", "prometheus/hangwatch.rules.yml"],
        ["amtool", "check-config", "alertmanager/alertmanager.yml"],
    ],
    ids=lambda command: f"{command[0]} {command[-1]}",
)
def test_the_configuration_is_valid(command: list[str]) -> None:
    tool(*command)


def test_each_alert_has_texts_and_a_section_in_the_runbook() -> None:
    text = RULES.read_text()
    sections = re.findall(r"(?m)^## (\w+)$", (DASHBOARDS / "RUNBOOK.md").read_text())
    alerts = re.split(r"(?m)^      - alert: ", text)[1:]
    names = [alert.split("\n", 1)[0] for alert in alerts]
    assert sorted(names) == sorted(sections)
    for name, alert in zip(names, alerts, strict=True):
        for field in ("severity", "summary", "description", "runbook", "runbook_url"):
            assert f"  {field}: " in alert, f"{name} has no {field}"
        assert f"runbook_url: RUNBOOK.md#{name.lower()}\n" in alert
    inhibited = (DASHBOARDS / "alertmanager" / "alertmanager.yml").read_text()
    assert set(re.findall(r"Hangwatch\w+", inhibited)) <= set(names)


def test_the_runbook_is_moved_by_the_command_that_it_shows(tmp_path: Path) -> None:
    block = re.search(r"```sh\n(.+?)```", (DASHBOARDS / "RUNBOOK.md").read_text(), re.DOTALL)
    assert block is not None
    copy = tmp_path / "prometheus" / RULES.name
    copy.parent.mkdir()
    shutil.copy(RULES, copy)
    tool("sh", "-c", f"cd {tmp_path} && {block[1]}")
    moved = re.findall(r"runbook_url: (\S+)", copy.read_text())
    assert len(moved) == RULES.read_text().count("- alert:")
    assert all(url.startswith("https://wiki.example.com/hangwatch#hangwatch") for url in moved)
    tool("promtool", "check", "rules", str(copy))


def test_the_compose_file_mounts_what_is_there() -> None:
    compose = (DASHBOARDS / "compose.yaml").read_text()
    mounted = re.findall(r"- \./(\S+?):", compose)
    assert sorted(mounted) == [
        "alertmanager",
        "grafana/dashboards",
        "grafana/provisioning",
        "prometheus",
    ]
    for path in mounted:
        assert any((DASHBOARDS / path).iterdir())
    home = re.search(r"/var/lib/grafana/dashboards/(\S+)", compose)
    assert home is not None
    assert (GRAFANA / home[1]).is_file()
