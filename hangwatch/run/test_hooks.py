"""Named points in the life of a supervisor or a watchdog, at which a test can hold it.

Nothing happens unless HANGWATCH_TEST_HOOKS names a directory. There the file NAME gets a line
with the pid of each process that reaches the point; while NAME.hold exists the process stays
there, its event loop included, and if NAME.crash exists it fails there. Tests use it to kill,
stop or outrun a process at a known point, without sleeping. If NAME is a directory, the process
writes its data at that point into it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "HANGWATCH_TEST_HOOKS"
_LOOK_S = 0.005


class Point(StrEnum):
    """The points of a watchdog, in the order in which an incident reaches them."""

    WATCHING = "watching"
    """It has read the Hello, and is about to look for the first time."""
    SUSPECTED = "suspected"
    """A rank waits for others; nothing is printed yet."""
    CLAIMED = "claimed"
    """The incident is this node's among several, and the others are about to be asked."""
    ASKED = "asked"
    """Another node has claimed an incident, and this one is about to answer."""
    GATHERING = "gathering"
    """The stacks and recorders of the ranks are about to be taken."""
    GATHERED = "gathered"
    """They have been, and the diagnosis is about to be made."""
    JUDGED = "judged"
    """There is a verdict that is news; nothing of it is written yet."""
    REPORTED = "reported"
    """Its report is written, and it is about to be printed."""
    HOOK_STARTED = "hook-started"
    """The user's command runs."""
    ANNOUNCED = "announced"
    """It has been printed, and sent to the other nodes."""
    HEARD = "heard"
    """The verdict of another node has come."""
    BEFORE_ABORT = "before-abort"
    """There are ranks to end, and nothing has been done to any of them."""
    BEFORE_TERM = "before-term"
    """Handles on them are open; they are about to be looked at again and to get SIGTERM."""
    BEFORE_KILL = "before-kill"
    """Some have outlived that; they are about to be looked at again and to get SIGKILL."""
    ENDED = "ended"
    """The ranks that were to be ended are."""
    RECOVERED = "recovered"
    """The job moves again; that is about to be printed."""
    CONTRADICTED = "contradicted"
    """Another node reported a failure, and the ranks of this one go on."""
    RESTARTED = "restarted"
    """The launcher has restarted the ranks, and they are about to be watched."""
    CONCLUDING = "concluding"
    """The command has ended; the reason is about to be printed."""
    CONCLUDED = "concluded"
    """All is printed and written."""


def reach(name: str) -> None:
    """Reach a point. Raises CrashForTestError if a test wants it."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    with suppress(OSError), Path(directory, name).open("a") as reached:
        reached.write(f"{os.getpid()}\n")
    if Path(directory, f"{name}.crash").exists():
        raise CrashForTestError(name)
    hold = Path(directory, f"{name}.hold")
    while hold.exists():
        time.sleep(_LOOK_S)


def keep(name: str, make: Callable[[], bytes]) -> None:
    """Write data of a process into a new file of the directory NAME, if there is one."""
    directory = os.environ.get(VARIABLE)
    if directory and Path(directory, name).is_dir():
        Path(directory, name, f"{time.monotonic_ns()}.json").write_bytes(make())


class CrashForTestError(Exception):
    """Raised at a point at which a test wants a crash."""
