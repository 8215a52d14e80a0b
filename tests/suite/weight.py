"""Weighs the package, as a ratchet: lines, modules, and docstrings that open with a question word.

weight.py            compare with what is recorded; exit code 1 where a figure has grown
weight.py --record   record the figures
weight.py --graph    print the rooms and their imports as a Mermaid graph (docs/architecture.md)
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "hangwatch"
RECORD = Path(__file__).with_name("weight.json")
QUESTIONS = frozenset(
    ["How", "What", "When", "Where", "Whether", "Which", "Who", "Whom", "Whose", "Why"]
)
QUESTION_SHARE = "docstrings that open with a question word, per mille"


def modules() -> dict[Path, ast.Module]:
    """The modules of the package, parsed."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def figures() -> dict[str, int]:
    """What is weighed."""
    parsed = modules()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        text
        for tree in parsed.values()
        for node in ast.walk(tree)
        if isinstance(node, documented) and (text := ast.get_docstring(node))
    ]
    asking = sum(text.split()[0].rstrip(",.:") in QUESTIONS for text in docstrings)
    return {
        "lines": sum(len(path.read_text("utf-8").splitlines()) for path in parsed),
        "modules": len(parsed),
        QUESTION_SHARE: round(1000 * asking / len(docstrings)),
    }


def imports() -> dict[str, set[str]]:
    """Room, or single module at the top, to those that it imports."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in modules().items():
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hangwatch"):
                names = [f"{node.module}.{alias.name}".split(".")[1] for alias in node.names]
                there = (PACKAGE / name for name in names)
                found[room] |= {
                    name.stem for name in there if name.is_dir() or name.with_suffix(".py").exists()
                }
        found[room].discard(room)
    del found["__init__"]
    return dict(found)


def graph() -> str:
    """The imports of rooms as Mermaid, without those that follow from others. There is no circle.

    Raises RecursionError where there is one.
    """
    direct = imports()

    def reached(room: str) -> set[str]:
        others = direct.get(room, set())
        return others.union(*map(reached, others))

    lines = ["graph TD"]
    for room, others in sorted(direct.items()):
        indirect = set().union(*map(reached, others))
        lines += [f"    {room} --> {other}" for other in sorted(others - indirect)]
    return "\n".join(lines)


def main() -> int:
    """Compare, record or draw; 1 where a figure has grown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="record the figures")
    parser.add_argument("--graph", action="store_true", help="print the graph of imports")
    options = parser.parse_args()
    if options.graph:
        sys.stdout.write(f"{graph()}\n")
        return 0
    now = figures()
    if options.record:
        RECORD.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    recorded = json.loads(RECORD.read_text())
    for name, figure in now.items():
        allowed = recorded[name]
        hint = ""
        if figure > allowed:
            hint = ": make it less, or record it with --record and say why"
        elif figure < allowed:
            hint = ": keep it with --record"
        sys.stdout.write(f"weight: {figure:,} {name}, {allowed:,} recorded{hint}\n")
    return int(any(figure > recorded[name] for name, figure in now.items()))


if __name__ == "__main__":
    sys.exit(main())
