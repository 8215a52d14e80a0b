"""The file by which a watchdog that is killed leaves its state to the next one.

``<run_dir>/watchdog.json``, written whole or not at all. A file that cannot be read counts as
none: the next watchdog then starts without.
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
    """Write the state; return True if that succeeded."""
    values = {"version": VERSION, **values}
    try:
        data = orjson.dumps(values)
    except orjson.JSONEncodeError:  # a text is no UTF-8: paths must come back as they were
        data = json.dumps(values).encode()
    try:
        untrusted.replace(run_dir / FILE, data)
    except OSError:
        return False
    return True


def load(run_dir: Path) -> dict[str, Any]:
    """Return the state that was saved last, empty if there is none that can be read."""
    try:
        values = untrusted.read_json(run_dir / FILE, MAX_BYTES, Owner.DIRECTORY)
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict) or values.get("version") != VERSION:
        return {}
    return values
