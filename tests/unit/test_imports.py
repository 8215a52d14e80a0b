"""The direction of imports between the parts of hangwatch (DESIGN, section 2)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import hangwatch

PACKAGE = Path(hangwatch.__file__).parent

BOTTOM = frozenset(
    {"types", "errors", "faultlog", "foreign", "frames", "moments", "notice", "collector"}
    | {"redaction", "secret_names", "texts", "untrusted", "native", "_native", "__init__"}
)
READERS = frozenset({"config", "page", "json_page"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    "types": frozenset(),
    "errors": frozenset(),
    "__init__": frozenset(),
    "native": frozenset({"_native"}),
    "moments": frozenset(),
    "notice": frozenset({"redaction", "texts"}),
    "redaction": frozenset({"secret_names"}),
    "secret_names": frozenset(),
    "texts": frozenset(),
    "foreign": frozenset(),
    "untrusted": frozenset({"foreign"}),
    "faultlog": frozenset(),
    "collector": frozenset(),
    "frames": frozenset({"types"}),
    "config": BOTTOM,
    "json_page": BOTTOM,
    "page": BOTTOM | {"json_page"},
    "diagnosis": BOTTOM,
    "flight": BOTTOM,
    "costly": BOTTOM | {"diagnosis"},
    "agent": BOTTOM | READERS | {"companions", "election", "rundir"},
    "report": BOTTOM | READERS | {"flight"},
    "companions": frozenset({"untrusted"}),
    "election": frozenset({"foreign"}),
    "rundir": frozenset({"foreign", "untrusted"}),
    "pidfd": frozenset(),
    "preflight": BOTTOM,
    "metrics": BOTTOM | READERS | {"report"},
    "gpu": BOTTOM,
    "nccl": BOTTOM | {"report"},
    "watchdog": BOTTOM
    | READERS
    | {"companions", "costly", "diagnosis", "flight", "gpu", "metrics", "nccl", "pidfd"}
    | {"preflight", "report", "rundir"},
}
"""What a part may import; those that are not named are the command line and its like."""
BANNED: dict[str, frozenset[str]] = {
    "diagnosis": frozenset({"os", "time", "logging", "torch"}),
    "agent": frozenset({"asyncio", "orjson", "prometheus_client", "jinja2"}),
    "costly": frozenset({"os", "time", "logging", "torch"}),
    "types": frozenset({"hangwatch"}),
    "supervisor": frozenset({"torch", "asyncio", "threading"}),
    "companions": frozenset({"torch", "asyncio", "threading"}),
    "caretaker": frozenset({"torch", "asyncio", "threading"}),
}
"""What a part must never import, from wherever it comes."""
STANDARD_ONLY = frozenset(
    {"agent", "types", "errors", "config", "frames", "notice", "json_page", "preflight"}
    | {"companions", "election", "redaction", "rundir", "secret_names"}
    | {"foreign", "untrusted"}
)
"""Parts that run in a training process."""
LOADED_LATE = frozenset({"torch", "numpy"})
"""Third parties that a training process has anyway."""


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    """The part that a module belongs to: its package, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The dotted names that a module imports at run time, wherever in it."""
    tree = ast.parse(path.read_text("utf-8"))
    names: set[str] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        todo.extend(ast.iter_child_nodes(node))
    return names


def ours(names: set[str]) -> set[str]:
    """The parts of hangwatch among imported names."""
    found = set()
    for name in names:
        words = name.split(".")
        if words[0] == "hangwatch":
            is_part = len(words) > 1 and any(
                (PACKAGE / f"{words[1]}{end}").exists() for end in ("", ".py", ".pyi")
            )
            found.add(words[1] if is_part else "__init__")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    names = imported(path)
    own = part(path)
    allowed = MAY_IMPORT.get(own)
    if allowed is not None:
        assert ours(names) <= allowed | {own, "__init__"}
    roots = {name.partition(".")[0] for name in names}
    assert not roots & BANNED.get(own, frozenset())
    if own in STANDARD_ONLY:
        assert roots - {"hangwatch"} - LOADED_LATE <= sys.stdlib_module_names
