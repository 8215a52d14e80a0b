"""Reads the pickle of a Flight Recorder into plain values, and runs nothing.

pickletools reads the opcodes, each length checked against the file, and only the opcodes of
plain values are followed: dict, list, tuple of scalars, str, int, float, bool and None.
There is no opcode here that imports, calls or builds an object, so nothing in the file can.
Memory is bounded, whatever the file asks for: values, containers and nesting are counted.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from itertools import islice
from typing import Any

from hangwatch.errors import FlightError
from hangwatch.safety.texts import readable

MAX_VALUES = 10_000_000
"""Opcodes. A dump of 20,000 entries with 20 frames each has about 4 million."""
MAX_CONTAINERS = 2_000_000
MAX_DEPTH = 32
"""Containers that are being filled at one time; a dump has 6."""
MAX_PROTOCOL = 5
_LONG_BYTES = 9
"""Of an integer: 64 bits and a sign."""


def is_pickle(data: bytes) -> bool:
    """True if data begins as a pickle of protocol 2 or later does."""
    return data[:1] == b"\x80"


def load(data: bytes) -> Any:
    """Return the value that a pickle holds. Raises FlightError for all but plain values."""
    try:
        return _Machine().run(data)
    except (UnicodeDecodeError, OverflowError, TypeError):
        raise FlightError("the pickle holds what no Flight Recorder writes") from None
    except (IndexError, KeyError, ValueError):
        raise FlightError("the pickle is damaged or cut short") from None


class _Machine:
    """The stack of a pickle, its memo, and the count of containers."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._marks: list[int] = []
        self._containers = 0

    def run(self, data: bytes) -> Any:
        """Execute up to STOP."""
        for opcode, argument, position in islice(pickletools.genops(data), MAX_VALUES):
            if opcode.name == "LONG1" and data[(position or 0) + 1] > _LONG_BYTES:
                raise FlightError("the pickle has an integer of more than 64 bits")
            if opcode.name in _NUMBERS:
                self.stack.append(argument)
            elif opcode.name in _TEXTS:
                self.stack.append(readable(argument or ""))
            elif opcode.name in _CONSTANTS:
                self.stack.append(_CONSTANTS[opcode.name])
            elif opcode.name in _STEPS:
                _STEPS[opcode.name](self, argument)
            elif opcode.name == "STOP":
                (value,) = self.stack
                return value
            else:
                raise FlightError(
                    f"the pickle uses opcode {opcode.code.encode('latin-1')!r}, which plain values "
                    "do not need: it is no Flight Recorder dump, or a hostile one"
                )
        raise FlightError(f"the pickle has more than {MAX_VALUES} values")

    def push_container(self, value: Any) -> None:
        """Count a new container, and push it."""
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise FlightError(f"the pickle has more than {MAX_CONTAINERS} lists and dicts")
        self.stack.append(value)

    def push_tuple(self, items: list[Any]) -> None:
        """Push a tuple; of scalars only, so that it can be hashed and compared in no time."""
        if any(isinstance(item, list | dict | tuple) for item in items):
            raise FlightError("the pickle has a tuple of containers")
        self.push_container(tuple(items))

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

    def check_protocol(self, protocol: int) -> None:
        """Refuse a protocol of a later Python."""
        if protocol > MAX_PROTOCOL:
            raise FlightError("the pickle is of a protocol that is not known")


_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"})
_TEXTS = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.check_protocol,
    "FRAME": lambda *_: None,
    "EMPTY_DICT": lambda m, _: m.push_container({}),
    "EMPTY_LIST": lambda m, _: m.push_container([]),
    "EMPTY_TUPLE": lambda m, _: m.push_container(()),
    "MARK": lambda m, _: m.mark(),
    "APPENDS": lambda m, _: m.append(m.since_mark()),
    "APPEND": lambda m, _: m.append(m.popped(1)),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "SETITEM": lambda m, _: m.set_items(m.popped(2)),
    "TUPLE": lambda m, _: m.push_tuple(m.since_mark()),
    "TUPLE1": lambda m, _: m.push_tuple(m.popped(1)),
    "TUPLE2": lambda m, _: m.push_tuple(m.popped(2)),
    "TUPLE3": lambda m, _: m.push_tuple(m.popped(3)),
    "BINGET": lambda m, index: m.stack.append(m.memo[index]),
    "LONG_BINGET": lambda m, index: m.stack.append(m.memo[index]),
    "BINPUT": _Machine.remember,
    "LONG_BINPUT": _Machine.remember,
    "MEMOIZE": lambda m, _: m.remember(len(m.memo)),
}
