"""Named moments in the life of a supervisor or a watchdog, at which a test can hold it.

Nothing happens unless HANGWATCH_MOMENTS names a directory. There the file NAME gets a
line with the pid of each process that comes by; while NAME.hold exists the process
stays at that moment, its event loop included, and where NAME.crash exists it fails there.
Tests use it to kill, stop or outrun a process at a known point, without sleeping. Where there
is a directory NAME, what a process knows at that moment is kept in it.
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

VARIABLE = "HANGWATCH_MOMENTS"
_LOOK_S = 0.005
NAMES = (
    "supervisor-ended",
    "supervisor-leaving",
    "supervisor-spawned",
    "supervisor-spawning",
    "supervisor-starting",
    "supervisor-watching",
)
"""All moments there are, sorted. Of the supervisor: signals are blocked (starting), before and
after COMMAND is started, after the watchdog was, COMMAND has ended, before the clean-up."""


class Point(StrEnum):
    """The moments of a watchdog, in the order in which an incident comes by them."""

    WATCHING = "watching"
    """It knows what to watch, and is about to look for the first time."""
    SUSPECTED = "suspected"
    """A rank waits for longer than a moment; nobody was told."""
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
    TOLD = "told"
    """It has been printed, and the other nodes have been told."""
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
    """What was waited for has come; it is about to be said."""
    BELIED = "belied"
    """Another node has told of a failure, and the ranks of this one go on."""
    RESTARTED = "restarted"
    """The launcher has started the ranks anew, and those are about to be watched."""
    CONCLUDING = "concluding"
    """The command has ended; it is about to be said why."""
    CONCLUDED = "concluded"
    """All is said and written."""


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


def keep(name: str, make: Callable[[], bytes]) -> None:
    """Write what a process knows into a new file of the directory NAME, where there is one."""
    directory = os.environ.get(VARIABLE)
    if directory and Path(directory, name).is_dir():
        Path(directory, name, f"{time.monotonic_ns()}.json").write_bytes(make())


class CrashForTestError(Exception):
    """What a process meets at a moment that a test has set to crash."""
