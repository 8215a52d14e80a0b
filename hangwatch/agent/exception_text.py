"""The text of an exception, made without running anything of the program's.

An exception's ``__str__`` may take long, ask the store or a device, or raise. Python runs
it when it prints the traceback; nothing else must. So a text is made of the arguments that
the exception was made with, by the interpreter's own methods.
"""

from __future__ import annotations

from typing import Any

from hangwatch.safety.foreign import args_of, bases_of, namespace_of

_QUALNAME = vars(type)["__qualname__"].__get__
_OS_FIELDS = tuple(
    vars(OSError)[name].__get__ for name in ("errno", "strerror", "filename", "filename2")
)
"""The interpreter's own, whatever a class of the program's makes of them."""
_SAYS_ITS_ARGUMENTS = (BaseException, AttributeError, KeyError, NameError, OSError)
"""Classes whose ``__str__`` looks at nothing but the arguments."""
_SAYS_ITS_FIRST = (ImportError, SyntaxError, BaseExceptionGroup)
"""Classes whose ``__str__`` adds a file, a line or a number to the first argument."""
_PLAIN = (str, int, float, bool, type(None))
ITEMS = 20
"""Most arguments, or items of an argument, in a text."""
CHARS = 4000
"""Longest text that is kept. A larger one may be gigabytes that could not be decoded."""
_MAX_BITS = 64
"""Bits of the largest number that is written out: many digits take long, and Python refuses."""


def type_name(kind: type) -> str:
    """Return the type's name as a traceback prints it."""
    module = namespace_of(kind).get("__module__", "")
    name = str.__str__(_QUALNAME(kind))
    if type(module) is not str or module in {"", "builtins", "__main__"}:
        return name
    return f"{module}.{name}"


def text_of(error: BaseException) -> str:
    """Return the exception's text, made of its arguments; of no plain value more than its type.

    Empty where its class makes the text by a method of its own: that may leave out what the
    exception was made with, and have its reasons.
    """
    args = args_of(error)
    said = next(base for base in bases_of(type(error)) if "__str__" in namespace_of(base))
    if said is UnicodeDecodeError or said is UnicodeEncodeError:
        return _of_a_codec(args)
    if any(said is kind for kind in _SAYS_ITS_FIRST):
        args = args[:1]
    elif not any(said is kind for kind in _SAYS_ITS_ARGUMENTS):
        return ""
    elif len(args) <= ITEMS and all(map(_is_plain, args)):
        fields = [get(error) for get in _OS_FIELDS] if said is OSError else []
        if all(map(_is_plain, fields)):
            return str(namespace_of(said)["__str__"](error))
    return ", ".join(map(_shown, args[:ITEMS]))


def _of_a_codec(args: tuple[Any, ...]) -> str:
    """Return the text of a UnicodeError: the position, and one byte or character at most."""
    if len(args) != 5 or not all(map(_is_plain, (args[0], *args[2:]))):  # noqa: PLR2004 (fields)
        return ""
    codec, what, start, end, reason = args
    verb = "decode byte" if type(what) is bytes else "encode character"
    if type(start) is not int or type(end) is not int:
        return ""
    if (type(what) is bytes or type(what) is str) and 0 <= start < len(what) and end == start + 1:
        item = ascii(what[start]) if type(what) is str else f"0x{what[start]:02x}"
        return f"{codec!r} codec can't {verb} {item} in position {start}: {reason}"
    return f"{codec!r} codec can't {verb}s in position {start}-{end - 1}: {reason}"


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is list or kind is tuple:
        return len(value) <= ITEMS and all(map(_is_plain_item, value))
    return _is_plain_item(value)


def _is_plain_item(value: Any) -> bool:
    # By identity: a class of the program's may have a metaclass that compares and hashes.
    kind = type(value)
    if not any(kind is plain for plain in _PLAIN):
        return False
    if kind is str:
        return len(value) <= CHARS
    return kind is not int or value.bit_length() <= _MAX_BITS


def _shown(value: Any) -> str:
    if _is_plain(value):
        return str(value)
    return value[:CHARS] if type(value) is str else f"<{type_name(type(value))}>"
