"""Encodes dataclasses as JSON, and decodes them with each value checked.

Messages of other nodes are never trusted: they are decoded by orjson (not
pickle, which runs what it reads), bounded in size, and each value must have the
type that the dataclass declares. Fields with their default are left out. Values that
are repeated often can be sent as their number in a table.
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
"""Most items of one list: the ranks that a group of a page may have."""
MAX_TEXT = 1 << 20
MAX_VALUES = 100_000
"""In one message, unless its reader passes another bound: they take some 100 bytes each."""

Tables = Mapping[type, dict[Any, int]]
"""Type to its values with their numbers; grows while values are encoded."""
Known = Mapping[type, Sequence[Any]]
"""Type to its values, in the order of their numbers."""
Decoder = Callable[[Any, Known], Any]
_SIMPLE = (str, int, float, bool, int | None, float | None, str | None, tuple[int, ...])
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Range of the integers that orjson reads."""
_NO_TABLES: dict[type, Any] = {}


class CodecError(HangwatchError):
    """Raised for bytes or values that are not of the expected type."""


def dumps(value: object, tables: Tables = _NO_TABLES) -> bytes:
    """Return any value of dataclasses, enums, tuples, dicts and plain values as JSON."""
    values = plain(value, tables)
    try:
        return orjson.dumps(values)
    except orjson.JSONEncodeError:  # a text that is no UTF-8
        return orjson.dumps(readable_all(values))


def plain(value: Any, tables: Tables = _NO_TABLES) -> Any:
    """Return a value as plain values, or as its number if its type is in ``tables``."""
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
    fields_set = {}
    for name, default, simple in _plan(kind):
        item = getattr(value, name)
        if item != default:
            fields_set[name] = item if simple else plain(item, tables)
    return fields_set


def loads(kind: Any, data: bytes, max_bytes: int, max_values: int = MAX_VALUES) -> Any:
    """Decode and check a value of a type (an annotation). Raises CodecError."""
    return decode(kind, parse(data, max_bytes, max_values))


def parse(data: bytes, max_bytes: int, max_values: int = MAX_VALUES) -> Any:
    """Parse JSON into plain values; nothing is built if they are too many. Raises CodecError."""
    if len(data) > max_bytes:
        raise CodecError(f"{len(data)} bytes, more than {max_bytes}")
    if (found := values_in(data)) > max_values:
        raise CodecError(f"{found} values, more than {max_values}")
    try:
        return orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise CodecError(f"no JSON: {error}") from error


def values_in(data: bytes) -> int:
    """Return how many values JSON holds at most, a few too many where texts hold commas."""
    return 1 + sum(map(data.count, (b",", b"[", b"{")))


def compress(data: bytes) -> bytes:
    """Compress data for ``decompress``."""
    return zlib.compress(data, 1)


def decompress(data: bytes, max_bytes: int) -> bytes:
    """Undo ``compress``, up to max_bytes. Raises CodecError."""
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(data, max_bytes)
    except zlib.error as error:
        raise CodecError(f"not compressed as it should be: {error}") from error
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise CodecError(f"damaged, or more than {max_bytes} bytes when unpacked")
    return unpacked


def decode(kind: Any, value: Any, known: Known = _NO_TABLES, *, lenient: bool = False) -> Any:
    """Make a value of a type (an annotation) from plain values. Raises CodecError.

    lenient: fields that a dataclass does not have are ignored, as those of a later version.
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
        options = [_decoder(option, lenient) for option in arguments if option is not type(None)]
        return _union(options, optional=type(None) in arguments)
    if origin is tuple:
        endless = len(arguments) == 2 and arguments[1] is Ellipsis  # noqa: PLR2004 (tuple[X, ...])
        items = [_decoder(item, lenient) for item in (arguments[:1] if endless else arguments)]
        return _list(items[0]) if endless else _tuple(items)
    if origin is dict:
        return _dict(arguments[0], _decoder(arguments[1], lenient))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    return {float: _float, int: _integer, str: _text, Path: _path}.get(kind) or _plain(kind)


def _shown(value: Any) -> str:
    """Return a value for people; a large one by its kind alone, since printing it is expensive."""
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)


def _plain(kind: type) -> Decoder:
    def decode_plain(value: Any, _: Known) -> Any:
        if type(value) is not kind:
            raise CodecError(f"{_shown(value)} is no {getattr(kind, '__name__', kind)}")
        return value

    return decode_plain


def _text(value: Any, _: Known) -> str:
    if type(value) is not str:
        raise CodecError(f"{_shown(value)} is no str")
    if len(value) > MAX_TEXT:
        raise CodecError(f"a text of {len(value)} characters")
    return value


def _path(value: Any, known: Known) -> Path:
    return Path(_text(value, known))


def _integer(value: Any, _: Known) -> int:
    if type(value) is not int or not _LEAST <= value <= _MOST:
        raise CodecError(f"{_shown(value)} is no 64-bit integer")
    return value


def _float(value: Any, _: Known) -> float:
    if type(value) is not float and type(value) is not int:
        raise CodecError(f"{_shown(value)} is no float")
    return float(value)


def _enum(kind: type[Enum]) -> Decoder:
    members = {member.value: member for member in kind}

    def decode_enum(value: Any, _: Known) -> Enum:
        member = members.get(value) if isinstance(value, str) else None
        if member is None:
            raise CodecError(f"{_shown(value)} is no {kind.__name__}")
        return member

    return decode_enum


def _record(kind: Any, *, lenient: bool) -> Decoder:
    hints = typing.get_type_hints(kind)
    required = {name for name, default, _ in _plan(kind) if default is MISSING}

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
                raise CodecError(f"{_shown(value)} is not the number of a {kind.__name__}")
            return table[value]
        if type(value) is not dict:
            raise CodecError(f"{_shown(value)} is no {kind.__name__}")
        if not decoders:
            decoders.update((name, _decoder(hint, lenient)) for name, hint in hints.items())
        try:
            if lenient:
                parts = decoders.items()
                return kind(
                    **{name: part(value[name], known) for name, part in parts if name in value}
                )
            return kind(**{name: decoders[name](item, known) for name, item in value.items()})
        except (KeyError, TypeError) as error:
            raise CodecError(mismatch(value)) from error

    return decode_record


def _union(options: Sequence[Decoder], *, optional: bool) -> Decoder:
    def decode_union(value: Any, known: Known) -> Any:
        if value is None and optional:
            return None
        for option in options[:-1]:
            try:
                return option(value, known)
            except CodecError:
                continue
        return options[-1](value, known)

    return decode_union


def _list(decoder: Decoder) -> Decoder:
    """Return the decoder of ``tuple[X, ...]``."""

    def decode_list(value: Any, known: Known) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > MAX_ITEMS:
            raise CodecError(f"{_shown(value)} is no list of at most {MAX_ITEMS}")
        # Integers may be the ranks of a large group: they are checked in few steps.
        integers = decoder is _integer and set(map(type, value)) == {int}
        if integers and _LEAST <= min(value) <= max(value) <= _MOST:
            return tuple(value)
        return tuple([decoder(item, known) for item in value])

    return decode_list


def _tuple(decoders: Sequence[Decoder]) -> Decoder:
    def decode_tuple(value: Any, known: Known) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(decoders):
            raise CodecError(f"{_shown(value)} is no list of {len(decoders)} values")
        return tuple(decode(item, known) for decode, item in zip(decoders, value, strict=True))

    return decode_tuple


def _dict(key_kind: Any, decoder: Decoder) -> Decoder:
    def decode_dict(value: Any, known: Known) -> dict[Any, Any]:
        if type(value) is not dict or len(value) > MAX_ITEMS:
            raise CodecError(f"{_shown(value)} is no object, or a very large one")
        return {_key(key_kind, key): decoder(item, known) for key, item in value.items()}

    return decode_dict


def _key(kind: Any, key: str) -> Any:
    if kind is not int:
        return key
    try:
        return int(key)
    except ValueError:
        raise CodecError(f"{_shown(key)} is no number") from None


@cache
def _plan(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return of each field its name, its default (or MISSING), and True if JSON has it as it is."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            field.name,
            field.default if field.default_factory is MISSING else field.default_factory(),
            hints[field.name] in _SIMPLE,
        )
        for field in fields(kind)
    )
