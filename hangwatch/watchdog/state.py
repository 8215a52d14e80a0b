"""What a watchdog leaves for the one that takes over when it is killed.

``<run_dir>/watchdog.json``, written whole or not at all. A file that is odd is
as good as none: the next watchdog then starts afresh.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from pathlib import Path

FILE = "watchdog.json"
VERSION = 1


def save(run_dir: Path, values: dict[str, Any]) -> bool:
    """Write the state; whether that succeeded."""
    path = run_dir / FILE
    fresh = path.with_suffix(f".{os.getpid()}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(orjson.dumps({"version": VERSION, **values}))
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        return False
    return True


def load(run_dir: Path) -> dict[str, Any]:
    """What was saved last, empty if there is nothing that can be read."""
    try:
        values = orjson.loads((run_dir / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict) or values.get("version") != VERSION:
        return {}
    return values
