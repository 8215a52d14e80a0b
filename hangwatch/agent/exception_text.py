"""What an exception says, told without running anything of the program's.

An exception's ``__str__`` may take long, ask the store or a device, or raise. Python runs
it when it prints the traceback; nobody else must. So a text is made of the arguments that
the exception was made with, by the interpreter's own methods.
"""

from __future__ import annotations

from typing import Any

_NAMESPACE = vars(type)["__dict__"].__get__
_BASES = vars(type)["__mro__"].__get__
_QUALNAME = vars(type)["__qualname__"].__get__
_ARGS = vars(BaseException)["args"].__get__
_OS_FIELDS = tuple(
    vars(OSError)[name].__get__ for name in ("errno", "strerror", "filename", "filename2")
)
"""The interpreter's own, whatever a class of the program's makes of them."""
_SAYS_ITS_ARGUMENTS = (BaseException, KeyError)
"""Whose ``__str__`` looks at nothing but the arguments."""
_PLAIN = (str, int, float, bool, bytes, type(None))
ITEMS = 20
"""So many arguments, or items of one, are told."""


def type_name(kind: type) -> str:
    """The type's name as a traceback prints it."""
    module = _NAMESPACE(kind).get("__module__", "")
    name = str.__str__(_QUALNAME(kind))
    if type(module) is not str or module in {"", "builtins", "__main__"}:
        return name
    return f"{module}.{name}"


def text_of(error: BaseException) -> str:
    """What the exception says by its arguments; one that is no plain value is told by its type."""
    args = _ARGS(error)
    if all(map(_is_plain, args)) and len(args) <= ITEMS:
        said = next(base for base in _BASES(type(error)) if "__str__" in _NAMESPACE(base))
        fields = [get(error) for get in _OS_FIELDS] if said is OSError else []
        if said in _SAYS_ITS_ARGUMENTS or (fields and all(map(_is_plain, fields))):
            return str(_NAMESPACE(said)["__str__"](error))
    return ", ".join(map(_shown, args[:ITEMS]))


def _is_plain(value: Any) -> bool:
    if type(value) in {list, tuple}:
        return len(value) <= ITEMS and all(type(item) in _PLAIN for item in value)
    return type(value) in _PLAIN


def _shown(value: Any) -> str:
    return str(value) if _is_plain(value) else f"<{type_name(type(value))}>"
