"""What the agent swallows: nothing that is meant for the user's code."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import hangwatch

if TYPE_CHECKING:
    from collections.abc import Iterator

AGENT = Path(hangwatch.__file__).parent / "agent"
IN_THE_SAMPLER = "the sampler's thread runs no signal handler"
ALLOWED = {
    ("flight.py", "FileNotFoundError"): IN_THE_SAMPLER,
    ("post_import.py", "Exception"): "it could not be asked, since the package is not there",
}


def swallowing() -> Iterator[tuple[str, str]]:
    """The except clauses that raise nothing again: module and what they catch."""
    for path in sorted(AGENT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ExceptHandler) and not any(
                isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node)
            ):
                yield path.name, ast.unparse(node.type) if node.type else ""


def test_every_except_clause_of_the_agent_lets_pass_what_is_foreign() -> None:
    assert sorted(swallowing()) == sorted(ALLOWED)


def test_the_agent_suppresses_nothing_without_asking() -> None:
    suppressing = [
        path.name
        for path in AGENT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom | ast.Import)
        and any(alias.name in {"suppress", "contextlib"} for alias in node.names)
    ]
    assert suppressing == []
