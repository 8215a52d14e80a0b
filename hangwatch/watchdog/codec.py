"""JSON for values of our own dataclasses, checked on the way in.

What comes from another node is never trusted: it is decoded by orjson (not
pickle, which runs what it reads), bounded in size, and each value must have the
type that the dataclass declares.
"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

import orjson

from hangwatch.errors import HangwatchError

MAX_ITEMS = 100_000
MAX_TEXT = 1 << 20


class CodecError(HangwatchError):
    """Bytes or values that are not what was announced."""


def dumps(value: object) -> bytes:
    """Any value of dataclasses, enums, tuples, dicts and plain values as JSON."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def loads(kind: Any, data: bytes, max_bytes: int) -> Any:
    """A checked value of a type (an annotation). Raises CodecError."""
    if len(data) > max_bytes:
        raise CodecError(f"{len(data)} bytes, more than {max_bytes}")
    try:
        return decode(kind, orjson.loads(data))
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise CodecError(f"no JSON: {error}") from error


def decode(kind: Any, value: Any) -> Any:
    """A value of the given type (an annotation) from plain values. Raises CodecError."""
    if is_dataclass(kind):
        return _dataclass(kind, value)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(kind), value)
    if origin is tuple:
        return _tuple(typing.get_args(kind), value)
    if origin is dict:
        return _dict(typing.get_args(kind), value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise CodecError(f"{value!r:.60} is no {kind.__name__}") from None
    return _plain(kind, value)


def _plain(kind: type, value: object) -> object:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise CodecError(f"{value!r:.60} is no {getattr(kind, '__name__', kind)}")
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise CodecError(f"a text of {len(value)} characters")
    return value


def _dataclass(kind: Any, value: object) -> Any:
    if not isinstance(value, dict):
        raise CodecError(f"{value!r:.60} is no {kind.__name__}")
    hints = _hints(kind)
    unknown = value.keys() - hints.keys()
    if unknown:
        raise CodecError(f"{kind.__name__} has no {min(map(str, unknown)):.60}")
    missing = [name for name in _required(kind) if name not in value]
    if missing:
        raise CodecError(f"a {kind.__name__} without {missing[0]}")
    return kind(**{name: decode(hints[name], item) for name, item in value.items()})


def _union(options: tuple[Any, ...], value: object) -> object:
    if value is None and type(None) in options:
        return None
    chosen = [option for option in options if option is not type(None)]
    for option in chosen[:-1]:
        try:
            return decode(option, value)
        except CodecError:
            continue
    return decode(chosen[-1], value)


def _tuple(items: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise CodecError(f"{value!r:.60} is no list, or a very long one")
    if len(items) == 2 and items[1] is Ellipsis:  # noqa: PLR2004 (tuple[X, ...])
        return tuple(decode(items[0], item) for item in value)
    if len(items) != len(value):
        raise CodecError(f"{len(value)} values where {len(items)} belong")
    return tuple(decode(kind, item) for kind, item in zip(items, value, strict=True))


def _dict(items: tuple[Any, ...], value: object) -> dict[Any, Any]:
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise CodecError(f"{value!r:.60} is no object, or a very large one")
    key_kind, value_kind = items
    return {_key(key_kind, key): decode(value_kind, item) for key, item in value.items()}


def _key(kind: Any, key: str) -> Any:
    if kind is not int:
        return decode(kind, key)
    try:
        return int(key)
    except ValueError:
        raise CodecError(f"{key!r:.60} is no number") from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache
def _required(kind: Any) -> tuple[str, ...]:
    return tuple(
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    )
