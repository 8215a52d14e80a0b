"""Makes the JSON schemas of reports below docs, from schema.py and straggler_schema.py.

Run as ``python tests/integration/report_schema.py``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import types
import typing
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangwatch.report import schema, straggler_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[2] / "docs"

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def document(kind: Any = schema.Report, *, closed: bool = False) -> dict[str, Any]:
    """The schema, JSON Schema 2020-12. closed: it allows no other fields than those it knows."""
    defined: dict[str, Any] = {}
    top = _reference(kind, defined)
    if closed:
        for one in defined.values():
            one["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hangwatch's {_name(kind)}.json",
        **top,
        "$defs": dict(sorted(defined.items())),
    }


def published() -> Iterator[tuple[Path, str]]:
    """The files, and what is in them."""
    for kind in (schema.Report, straggler_schema.StragglerReport):
        yield DOCS / f"{_name(kind)}.schema.json", json.dumps(document(kind), indent=1) + "\n"


def _name(kind: type) -> str:
    return kind.__name__.lower().replace("stragglerreport", "straggler")


def _of(hint: Any, defined: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 (each kind of type)
    """The schema of a value with this annotation; objects in it are added to defined."""
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Annotated:  # a text, and the enum that it is a value of
            return {"type": "string", "enum": [member.value for member in hint.__metadata__[0]]}
        case typing.Literal:
            return {"const": arguments[0]}
        case typing.NotRequired:
            return _of(arguments[0], defined)
        case typing.Union | types.UnionType:
            return {"anyOf": [_of(one, defined) for one in arguments]}
        case builtins.list:
            return {"type": "array", "items": _of(arguments[0], defined)}
        case builtins.dict:
            return {"type": "object", "additionalProperties": _of(arguments[1], defined)}
    return _reference(hint, defined)


def _reference(kind: Any, defined: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in defined:
        defined[kind.__name__] = {}  # it may refer to itself
        texts = _docstrings(kind.__name__)
        hints = typing.get_type_hints(kind, include_extras=True)
        defined[kind.__name__] = {
            "description": inspect.getdoc(kind),
            "type": "object",
            "properties": {
                name: _of(hint, defined) | ({"description": texts[name]} if name in texts else {})
                for name, hint in hints.items()
            },
            "required": [
                # Not __required_keys__: it takes an annotation that is a text for required.
                name
                for name, hint in hints.items()
                if typing.get_origin(hint) is not typing.NotRequired
            ],
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _docstrings(name: str) -> dict[str, str]:
    """The texts below the fields of a class and of its bases."""
    kind = _classes().get(name)
    texts: dict[str, str] = {}
    if kind is None:  # it is not written as a class
        return texts
    for base in kind.bases:
        texts |= _docstrings(ast.unparse(base))
    for field, text in pairwise(kind.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                texts[name] = inspect.cleandoc(words).replace("\n", " ")
    return texts


@cache
def _classes() -> dict[str, ast.ClassDef]:
    trees = (ast.parse(inspect.getsource(module)) for module in (schema, straggler_schema))
    return {
        node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    }


if __name__ == "__main__":
    for file, text in published():
        file.write_text(text)
