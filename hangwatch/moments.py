"""Named moments in the life of a supervisor or a watchdog, at which a test can hold it.

Nothing happens unless HANGWATCH_MOMENTS names a directory. There the file NAME gets a
line with the pid of each process that comes by; while NAME.hold exists the process
stays at that moment, its event loop included, and where NAME.crash exists it fails there.
Tests use it to kill, stop or outrun a process at a known point, without sleeping.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "HANGWATCH_MOMENTS"
_LOOK_S = 0.005


class CrashForTestError(Exception):
    """What a process meets at a moment that a test has set to crash."""


def reach(name: str) -> None:
    """Come by a moment. Raises CrashForTestError where a test wants it."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    with suppress(OSError), Path(directory, name).open("a") as passed:
        passed.write(f"{os.getpid()}\n")
    if Path(directory, f"{name}.crash").exists():
        raise CrashForTestError(name)
    hold = Path(directory, f"{name}.hold")
    while hold.exists():
        time.sleep(_LOOK_S)
