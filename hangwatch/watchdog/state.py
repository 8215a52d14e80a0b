"""What a watchdog leaves for the one that takes over when it is killed.

``<run_dir>/watchdog.json``, written whole or not at all. A file that is odd is
as good as none: the next watchdog then starts afresh.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson

from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

FILE = "watchdog.json"
VERSION = 1
MAX_BYTES = 16 << 20


def save(run_dir: Path, values: dict[str, Any]) -> bool:
    """Write the state; whether that succeeded."""
    try:
        untrusted.replace(run_dir / FILE, _json({"version": VERSION, **values}))
    except OSError:
        return False
    return True


def _json(values: dict[str, Any]) -> bytes:
    """Like orjson.dumps, also where a text is no UTF-8: paths must come back as they were."""
    try:
        return orjson.dumps(values)
    except orjson.JSONEncodeError:
        return json.dumps(values).encode()


def load(run_dir: Path) -> dict[str, Any]:
    """What was saved last, empty if there is nothing that can be read."""
    try:
        values = untrusted.read_json(run_dir / FILE, MAX_BYTES, Owner.DIRECTORY)
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict) or values.get("version") != VERSION:
        return {}
    return values
