r"""Makes texts with bytes that are no UTF-8 fit for JSON and for people.

The system hands Python bytes (arguments, paths, variables, the name of the host); those that
are no UTF-8 become lone surrogates (PEP 383). Paths stay so, or they would name another file.
Texts that are only shown or sent become readable here, with ``\xff`` for such a byte, since
orjson, Prometheus and UTF-8 itself refuse lone surrogates.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

T = TypeVar("T")
_LONE = re.compile("[\ud800-\udfff]")


def readable(text: str) -> str:
    """Return the text with lone surrogates spelt out; any other text as it is."""
    return text if text.isascii() else _LONE.sub(_spelt, text)


def readable_all(value: Any) -> Any:
    """Return the plain values (of JSON) with readable texts, keys too."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {readable_all(key): readable_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable_all(item) for item in value]
    return value


def readable_report(report: T) -> T:
    """Return the plain values of a report, converted only if that is needed."""
    import json  # noqa: PLC0415 (ranks need readable() alone)

    if "\\ud" not in json.dumps(report):  # a surrogate as json escapes it
        return report
    spelt: T = readable_all(report)
    return spelt


def _spelt(match: re.Match[str]) -> str:
    number = ord(match[0])
    byte = number - 0xDC00  # PEP 383: 0x80 to 0xFF
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else f"\\u{number:04x}"  # noqa: PLR2004
