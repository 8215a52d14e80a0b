"""Python's garbage collector, where it only costs time.

What comes from another node is never trusted: it is decoded by orjson (not
pickle, which runs what it reads), bounded in size, and each value must have the
type that the dataclass declares. What has its default is left out. Values that
come again and again can be sent as their number in a table.
"""

from __future__ import annotations

import gc
import types
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from hangwatch.errors import HangwatchError
from hangwatch.safety.texts import readable_all


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep the collector off: for a large job it takes a third of the time.

    It would look again and again for cycles among millions of objects that have none.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


MAX_ITEMS = 1 << 17
"""As many ranks as a group of a page may have."""
MAX_TEXT = 1 << 20
MAX_VALUES = 100_000
"""In one message, unless its reader says otherwise: they take some 100 bytes each."""

Tables = Mapping[type, dict[Any, int]]
"""Type to its values with their numbers; grows while values are encoded."""
Known = Mapping[type, Sequence[Any]]
"""Type to its values, in the order of their numbers."""
Decoder = Callable[[Any, Known], Any]
_SIMPLE = (str, int, float, bool, int | None, float | None, str | None, tuple[int, ...])
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Integers that JSON can tell."""
_NO_TABLES: dict[type, Any] = {}


class CodecError(HangwatchError):
    """Bytes or values that are not what was announced."""


def dumps(value: object, tables: Tables = _NO_TABLES) -> bytes:
    """Any value of dataclasses, enums, tuples, dicts and plain values as JSON."""
    told = plain(value, tables)
    try:
        return orjson.dumps(told)
    except orjson.JSONEncodeError:  # a text that is no UTF-8
        return orjson.dumps(readable_all(told))


def plain(value: Any, tables: Tables = _NO_TABLES) -> Any:
    """The same as plain values. Those of a type in ``tables`` become numbers."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(item, tables) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item, tables) for key, item in value.items()}
    kind: Any = type(value)
    table = tables.get(kind)
    if table is not None:
        return table.setdefault(value, len(table))
    found = {}
    for name, default, simple in _plan(kind):
        item = getattr(value, name)
        if item != default:
            found[name] = item if simple else plain(item, tables)
    return found


def loads(kind: Any, data: bytes, max_bytes: int, max_values: int = MAX_VALUES) -> Any:
    """A checked value of a type (an annotation). Raises CodecError."""
    return decode(kind, parse(data, max_bytes, max_values))


def parse(data: bytes, max_bytes: int, max_values: int = MAX_VALUES) -> Any:
    """Plain values from JSON, of which nothing is built if they are too many.

    Raises CodecError.
    """
    if len(data) > max_bytes:
        raise CodecError(f"{len(data)} bytes, more than {max_bytes}")
    if (found := values_in(data)) > max_values:
        raise CodecError(f"{found} values, more than {max_values}")
    try:
        return orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise CodecError(f"no JSON: {error}") from error


def values_in(data: bytes) -> int:
    """How many values JSON holds at most, a few too many where texts hold commas."""
    return 1 + sum(map(data.count, (b",", b"[", b"{")))


def compress(data: bytes) -> bytes:
    """For ``decompress``."""
    return zlib.compress(data, 1)


def decompress(data: bytes, max_bytes: int) -> bytes:
    """What was compressed, at most max_bytes of it. Raises CodecError."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(data, max_bytes)
    except zlib.error as error:
        raise CodecError(f"not compressed as it should be: {error}") from error
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise CodecError(f"damaged, or more than {max_bytes} bytes when unpacked")
    return found


def decode(kind: Any, value: Any, known: Known = _NO_TABLES, *, lenient: bool = False) -> Any:
    """A value of the given type (an annotation) from plain values. Raises CodecError.

    lenient: fields that a dataclass has not are left out, as those of a later version.
    """
    try:
        return _decoder(kind, lenient)(value, known)
    except RecursionError as error:
        raise CodecError("nested too deeply") from error


@cache
def _decoder(kind: Any, lenient: bool) -> Decoder:  # noqa: FBT001 (a key of the cache)
    if is_dataclass(kind):
        return _record(kind, lenient=lenient)
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        chosen = [_decoder(one, lenient) for one in arguments if one is not type(None)]
        return _union(chosen, optional=type(None) in arguments)
    if origin is tuple:
        endless = len(arguments) == 2 and arguments[1] is Ellipsis  # noqa: PLR2004 (tuple[X, ...])
        items = [_decoder(one, lenient) for one in (arguments[:1] if endless else arguments)]
        return _list(items[0]) if endless else _tuple(items)
    if origin is dict:
        return _dict(arguments[0], _decoder(arguments[1], lenient))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    return {float: _float, int: _integer, str: _text, Path: _path}.get(kind) or _plain(kind)


def _said(value: Any) -> str:
    """A value for people; of what is large only what it is, since to print it costs as much."""
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)


def _plain(kind: type) -> Decoder:
    def decode_plain(value: Any, _: Known) -> Any:
        if type(value) is not kind:
            raise CodecError(f"{_said(value)} is no {getattr(kind, '__name__', kind)}")
        return value

    return decode_plain


def _text(value: Any, _: Known) -> str:
    if type(value) is not str:
        raise CodecError(f"{_said(value)} is no str")
    if len(value) > MAX_TEXT:
        raise CodecError(f"a text of {len(value)} characters")
    return value


def _path(value: Any, known: Known) -> Path:
    return Path(_text(value, known))


def _integer(value: Any, _: Known) -> int:
    if type(value) is not int or not _LEAST <= value <= _MOST:
        raise CodecError(f"{_said(value)} is no 64-bit integer")
    return value


def _float(value: Any, _: Known) -> float:
    if type(value) is not float and type(value) is not int:
        raise CodecError(f"{_said(value)} is no float")
    return float(value)


def _enum(kind: type[Enum]) -> Decoder:
    members = {member.value: member for member in kind}

    def decode_enum(value: Any, _: Known) -> Enum:
        found = members.get(value) if isinstance(value, str) else None
        if found is None:
            raise CodecError(f"{_said(value)} is no {kind.__name__}")
        return found

    return decode_enum


def _record(kind: Any, *, lenient: bool) -> Decoder:
    hints = typing.get_type_hints(kind)
    required = {name for name, default in _defaults(kind) if default is MISSING}

    def mismatch(value: dict[str, Any]) -> str:
        if missing := required - value.keys():
            return f"{kind.__name__} lacks {', '.join(sorted(missing))}"
        return f"{kind.__name__} has no {min(value.keys() - hints.keys(), default='sense'):.60}"

    # Looked up when first used: a type may hold values of itself.
    decoders: dict[str, Decoder] = {}

    def decode_record(value: Any, known: Known) -> Any:
        table = known.get(kind) if known else None
        if table is not None:
            if type(value) is not int or not 0 <= value < len(table):
                raise CodecError(f"{_said(value)} is not the number of a {kind.__name__}")
            return table[value]
        if type(value) is not dict:
            raise CodecError(f"{_said(value)} is no {kind.__name__}")
        if not decoders:
            decoders.update((name, _decoder(hint, lenient)) for name, hint in hints.items())
        try:
            if lenient:
                parts = decoders.items()
                return kind(
                    **{name: one(value[name], known) for name, one in parts if name in value}
                )
            return kind(**{name: decoders[name](item, known) for name, item in value.items()})
        except (KeyError, TypeError) as error:
            raise CodecError(mismatch(value)) from error

    return decode_record


def _union(chosen: Sequence[Decoder], *, optional: bool) -> Decoder:
    def decode_union(value: Any, known: Known) -> Any:
        if value is None and optional:
            return None
        for option in chosen[:-1]:
            try:
                return option(value, known)
            except CodecError:
                continue
        return chosen[-1](value, known)

    return decode_union


def _list(one: Decoder) -> Decoder:
    """For ``tuple[X, ...]``."""
    if one is _integer:
        return _integers

    def decode_list(value: Any, known: Known) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > MAX_ITEMS:
            raise CodecError(f"{_said(value)} is no list of at most {MAX_ITEMS}")
        return tuple([one(item, known) for item in value])

    return decode_list


def _integers(value: Any, known: Known) -> tuple[int, ...]:
    """For ``tuple[int, ...]``, which may be the ranks of a large group: in few steps."""
    if type(value) is not list or len(value) > MAX_ITEMS:
        raise CodecError(f"{_said(value)} is no list of at most {MAX_ITEMS}")
    if value and (set(map(type, value)) != {int} or min(value) < _LEAST or max(value) > _MOST):
        return tuple([_integer(item, known) for item in value])  # says which
    return tuple(value)


def _tuple(decoders: Sequence[Decoder]) -> Decoder:
    def decode_tuple(value: Any, known: Known) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(decoders):
            raise CodecError(f"{_said(value)} is no list of {len(decoders)} values")
        return tuple(one(item, known) for one, item in zip(decoders, value, strict=True))

    return decode_tuple


def _dict(key_kind: Any, one: Decoder) -> Decoder:
    def decode_dict(value: Any, known: Known) -> dict[Any, Any]:
        if type(value) is not dict or len(value) > MAX_ITEMS:
            raise CodecError(f"{_said(value)} is no object, or a very large one")
        return {_key(key_kind, key): one(item, known) for key, item in value.items()}

    return decode_dict


def _key(kind: Any, key: str) -> Any:
    if kind is not int:
        return key
    try:
        return int(key)
    except ValueError:
        raise CodecError(f"{_said(key)} is no number") from None


@cache
def _plan(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Field to its default, and whether JSON has its values as they are."""
    hints = typing.get_type_hints(kind)
    return tuple((name, default, hints[name] in _SIMPLE) for name, default in _defaults(kind))


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Field to its default, MISSING where it has none."""
    return tuple(
        (one.name, one.default if one.default_factory is MISSING else one.default_factory())
        for one in fields(kind)
    )
