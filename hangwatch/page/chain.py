"""What a rank's page says of the exception that ended it: its text, and what led to it.

Both lie in one field, with a separator that no text of a program gets into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SEPARATOR = "\x1e"
"""ASCII's record separator."""


def packed(message: str, thrown: str, after: Iterable[str]) -> str:
    """The field: the text, what a call of torch's has raised, and what led to the exception."""
    parts = [part.replace(SEPARATOR, " ") for part in (message, thrown, *after)]
    return SEPARATOR.join(parts if any(parts[1:]) else parts[:1])


def unpacked(field: str) -> tuple[str, str, tuple[str, ...]]:
    """(message, thrown, after) of what ``packed`` has made; a page of an older agent has a text."""
    message, *others = field.split(SEPARATOR)
    thrown, *after = others or [""]
    return message, thrown, tuple(after)
