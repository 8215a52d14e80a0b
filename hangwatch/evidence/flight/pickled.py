"""Reads the pickle of a Flight Recorder into plain values, and runs nothing.

Its machine knows only the opcodes that plain values are made of (pickletools
documents them): dict, list, tuple of scalars, str, int, float, bool and None.
There is no opcode here that imports, calls or builds an object, so nothing in the
file can. Memory is bounded, whatever the file asks for: every length is
checked against the file, and values, containers and nesting are counted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from hangwatch.errors import FlightError

MAX_VALUES = 10_000_000
"""Values pushed. A dump of 20,000 entries with 20 frames each has about 4 million."""
MAX_CONTAINERS = 2_000_000
MAX_DEPTH = 32
"""Containers that are being filled at one time; a dump has 6."""
MAX_PROTOCOL = 5

_LONG_BYTES = 9
"""Of an integer: 64 bits and a sign."""
_I32, _U8, _U16, _U32, _U64 = (struct.Struct(f"<{code}") for code in "iBHIQ")
_F64 = struct.Struct(">d")


def is_pickle(data: bytes) -> bool:
    """True if data begins as a pickle of protocol 2 or later does."""
    return data[:1] == b"\x80"


def load(data: bytes) -> Any:
    """Return the value that a pickle holds. Raises FlightError for all but plain values."""
    try:
        return _Machine(data).run()
    except (IndexError, KeyError, struct.error):
        raise FlightError("the pickle is damaged or cut short") from None
    except (UnicodeDecodeError, OverflowError, ValueError, TypeError):
        raise FlightError("the pickle holds what no Flight Recorder writes") from None


class _Machine:
    """The stack of a pickle, its memo, and the count of containers."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._marks: list[int] = []
        self._containers = 0

    def run(self) -> Any:
        """Execute up to STOP."""
        data, stack, pushes = self._data, self.stack, _PUSHES
        for _ in range(MAX_VALUES):
            code = data[self._at]
            self._at += 1
            push = pushes.get(code)
            if push is not None:
                stack.append(push(self))
                continue
            if code == _STOP:
                (value,) = stack
                return value
            step = _STEPS.get(code)
            if step is None:
                raise FlightError(
                    f"the pickle uses opcode {bytes([code])!r}, which plain values do not need: "
                    "it is no Flight Recorder dump, or a hostile one"
                )
            step(self)
        raise FlightError(f"the pickle has more than {MAX_VALUES} values")

    def take(self, count: int) -> bytes:
        """Return the next bytes of the file, all of them."""
        end = self._at + count
        if end > len(self._data):
            raise IndexError
        found = self._data[self._at : end]
        self._at = end
        return found

    def number(self, form: struct.Struct) -> Any:
        """Return the next number."""
        return form.unpack(self.take(form.size))[0]

    def text(self, form: struct.Struct) -> str:
        """Return a string behind its length."""
        return self.take(self.number(form)).decode("utf-8", "replace")

    def long(self) -> int:
        """Return an integer of up to 64 bits behind its length."""
        size = self.number(_U8)
        if size > _LONG_BYTES:
            raise FlightError("the pickle has an integer of more than 64 bits")
        return int.from_bytes(self.take(size), "little", signed=True)

    def made(self, value: Any) -> Any:
        """Count a new container, and return it."""
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise FlightError(f"the pickle has more than {MAX_CONTAINERS} lists and dicts")
        return value

    def mark(self) -> None:
        """Remember where the items of a container begin."""
        if len(self._marks) >= MAX_DEPTH:
            raise FlightError(f"the pickle is nested deeper than {MAX_DEPTH}")
        self._marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        """Pop the items pushed since the last mark."""
        return self._popped_from(self._marks.pop())

    def popped(self, count: int) -> list[Any]:
        """Pop the last items; items below the last mark belong to another container."""
        at = len(self.stack) - count
        if at < (self._marks[-1] if self._marks else 0):
            raise IndexError
        return self._popped_from(at)

    def _popped_from(self, at: int) -> list[Any]:
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def tuple(self, items: list[Any]) -> None:
        """Push a tuple; of scalars only, so that it can be hashed and compared in no time."""
        if any(isinstance(item, list | dict | tuple) for item in items):
            raise FlightError("the pickle has a tuple of containers")
        self.stack.append(self.made(tuple(items)))

    def append(self, items: list[Any]) -> None:
        """Extend the list on top."""
        top = self.stack[-1]
        if type(top) is not list:
            raise TypeError
        top.extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Fill the dict on top. Keys are strings or integers."""
        top = self.stack[-1]
        if type(top) is not dict or len(items) % 2:
            raise TypeError
        keys = items[::2]
        if any(type(key) is not str and type(key) is not int for key in keys):
            raise TypeError
        top.update(zip(keys, items[1::2], strict=True))

    def remember(self, index: int) -> None:
        """Put the top of the stack into the memo."""
        self.memo[index] = self.stack[-1]

    def check_protocol(self) -> None:
        """Refuse a protocol of a later Python."""
        if self.number(_U8) > MAX_PROTOCOL:
            raise FlightError("the pickle is of a protocol that is not known")


_STOP = ord(".")
_PUSHES: dict[int, Callable[[_Machine], Any]] = {
    ord("}"): lambda m: m.made({}),
    ord("]"): lambda m: m.made([]),
    ord(")"): lambda m: m.made(()),
    ord("N"): lambda _: None,
    0x88: lambda _: True,
    0x89: lambda _: False,
    ord("J"): lambda m: m.number(_I32),
    ord("K"): lambda m: m.number(_U8),
    ord("M"): lambda m: m.number(_U16),
    0x8A: lambda m: m.long(),
    ord("G"): lambda m: m.number(_F64),
    ord("X"): lambda m: m.text(_U32),
    0x8C: lambda m: m.text(_U8),
    0x8D: lambda m: m.text(_U64),
    ord("h"): lambda m: m.memo[m.number(_U8)],
    ord("j"): lambda m: m.memo[m.number(_U32)],
}
"""Opcodes that push one value: EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, NONE, NEWTRUE, NEWFALSE,
BININT, BININT1, BININT2, LONG1, BINFLOAT, BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, BINGET,
LONG_BINGET."""
_STEPS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.check_protocol(),
    0x95: lambda m: m.take(8),
    ord("("): lambda m: m.mark(),
    ord("e"): lambda m: m.append(m.since_mark()),
    ord("a"): lambda m: m.append(m.popped(1)),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("s"): lambda m: m.set_items(m.popped(2)),
    ord("t"): lambda m: m.tuple(m.since_mark()),
    0x85: lambda m: m.tuple(m.popped(1)),
    0x86: lambda m: m.tuple(m.popped(2)),
    0x87: lambda m: m.tuple(m.popped(3)),
    ord("q"): lambda m: m.remember(m.number(_U8)),
    ord("r"): lambda m: m.remember(m.number(_U32)),
    0x94: lambda m: m.remember(len(m.memo)),
}
"""PROTO, FRAME, MARK, APPENDS, APPEND, SETITEMS, SETITEM, TUPLE, TUPLE1, TUPLE2, TUPLE3,
BINPUT, LONG_BINPUT, MEMOIZE."""
