"""The order of the rooms: each imports only from those below it, and there is no circle."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest
from weight import graph

import hangwatch

PACKAGE = Path(hangwatch.__file__).parent
ROOT = Path(__file__).parents[2]

HOUSE = (
    *("_native", "errors", "safety", "model", "text", "console", "settings", "run", "agent"),
    *("evidence", "preflight", "diagnosis", "efficiency", "report", "metrics", "watchdog"),
    *("launch", "commands", "cli", "__main__"),
)
"""Rooms, and modules that are in none, lowest first: each imports only from what stands before."""
WITHIN: dict[str, tuple[str, ...]] = {
    "agent": (
        *("guard", "exception_text", "torch_api", "environment", "call_site"),
        *("periodic",),
        *("record", "sample", "habits", "inject"),
    ),
    "evidence": (
        *("timing", "flight", "gpu", "background", "processes", "sockets", "ras", "cgroups"),
        *("exits", "stacks", "sources", "environment", "pages", "snapshot", "local_ranks"),
    ),
    "diagnosis": (
        "timing",
        "source",
        "facts",
        "graph",
        "text",
        "rules",
        "advice",
        "desync",
        "verdict",
    ),
    "watchdog": (
        *("timing", "state", "cadence", "peers", "incident", "gpus", "startup", "moments"),
        *("profiles", "straggler_reporter", "announcer", "stragglers", "telemetry", "monitor"),
        *("daemon", "__main__"),
    ),
    "commands": ("timing", "runs", "top", "inspection", "doctor", "demo", "report", "analyze"),
}
"""The same inside rooms that have rooms."""
ONLY: dict[str, frozenset[str]] = {
    "agent": frozenset({"model", "safety", "run"}),
    "preflight": frozenset({"safety", "run"}),
    "diagnosis": frozenset({"model", "text"}),
    "efficiency": frozenset({"model", "text", "diagnosis"}),
    "launch": frozenset(
        {"errors", "safety", "model", "text", "console", "settings", "run", "agent"}
        | {"evidence", "report"}
    ),
}
"""Rooms that import nothing else of ours: they are pure, or live in the user's process."""
BANNED: dict[str, frozenset[str]] = {
    "diagnosis": frozenset({"os", "time", "logging", "torch"}),
    "efficiency": frozenset({"os", "time", "logging", "torch"}),
    "agent": frozenset({"asyncio", "orjson", "prometheus_client", "jinja2"}),
    "launch": frozenset({"torch", "asyncio", "threading"}),
    "run": frozenset({"torch", "asyncio", "threading"}),
}
"""What a room must never import, from wherever it comes."""
IN_A_RANK = frozenset({"agent", "run", "safety"})
"""Rooms that run in a training process: of the standard library alone."""
LOADED_LATE = frozenset({"torch", "numpy"})
"""Third parties that a training process has anyway."""


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """A module's dotted name, without that of the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


@cache
def known() -> frozenset[str]:
    """The dotted names of all our modules."""
    return frozenset(name_of(path) for path in modules()) | {"_native"}


@cache
def imported(path: Path) -> frozenset[str]:
    """The dotted names that a module imports, for types alone or not, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@cache
def ours(path: Path) -> frozenset[str]:
    """Our own modules that a module imports, but the package itself for its version."""
    found = set()
    for name in imported(path):
        first, _, rest = name.partition(".")
        if first == "hangwatch":
            found.add(rest if rest in known() else rest.rpartition(".")[0])
    return frozenset(found) - {"", name_of(path)}


def at_run_time(path: Path) -> set[str]:
    """What a module imports when it runs: the first words of their names."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    nodes = list(ast.walk(tree))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | named}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    room, *inside = name_of(path).split(".")
    if room == "__init__":
        assert not ours(path)
        return
    for name in ours(path):
        other, *there = name.split(".")
        if other != room:
            assert HOUSE.index(other) < HOUSE.index(room), f"imports {name}"
            assert other in ONLY.get(room, HOUSE), f"imports {name}"
        elif room in WITHIN and inside and there and there[0] != inside[0]:
            order = WITHIN[room]
            assert order.index(there[0]) < order.index(inside[0]), f"imports {name}"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_rooms_are_clean_of_what_does_not_belong_there(path: Path) -> None:
    room = name_of(path).partition(".")[0]
    roots = at_run_time(path)
    assert not roots & BANNED.get(room, frozenset())
    if room in IN_A_RANK:
        assert roots - {"hangwatch"} - LOADED_LATE <= sys.stdlib_module_names


def test_no_module_leads_back_to_itself() -> None:
    paths = {name_of(path): path for path in modules()}
    done: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name in paths and name not in done:
            for other in ours(paths[name]):
                follow(other, (*way, name))
            done.add(name)

    for name in paths:
        follow(name, ())


def test_the_graph_in_the_docs_is_that_of_the_imports() -> None:
    assert f"```mermaid\n{graph()}\n```" in (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_every_room_is_on_the_plan() -> None:
    found = {name.partition(".")[0] for name in known()} - {"__init__"}
    assert found == set(HOUSE)
    for room, order in WITHIN.items():
        inside = {name.split(".")[1] for name in known() if name.startswith(f"{room}.")}
        assert inside == set(order)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=name_of)
def test_a_room_says_its_purpose_in_one_line(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    assert said.partition("\n")[0].endswith(".")
