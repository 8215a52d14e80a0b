"""Counts on the page, by line, things that a rank does besides its calls of groups.

The counts are compared between ranks once the job hangs: they may show a step long ago in which
a rank went another way.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hangwatch.agent.call_site import raised_at, user_site
from hangwatch.agent.exception_text import text_of, type_name
from hangwatch.agent.guard import Guard
from hangwatch.agent.record.hidden_wrappers import follow, leave_alone
from hangwatch.safety.foreign import traceback_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from types import FrameType

    from hangwatch.agent.call_site import CallSite, Prefixes
    from hangwatch.agent.record.recorder import Recorder

NO_SYNC = "no_sync"
"""DistributedDataParallel.no_sync was entered: gradients of a backward pass stay local."""
THREAD_DIED = "thread_died"
"""An exception has ended a thread; the text names both."""
AWAITS_KEY = "awaits_key"
"""A key of a store was waited for; the text is the last one of that line."""
SETS_KEY = "sets_key"
"""A key of a store was set; the text is the last one of that line."""
HANDLES = "handles"
"""The main thread is handling an exception, as the text says, that was raised at that line."""
MOST_KEYS, MOST_OF_A_KEY = 4, 200
MOST = 16
_current: list[Marks] = []
"""The Marks of this process; a fork's child that becomes a rank puts its own here."""


def _is_compiling() -> bool:
    """Stand for torch.compiler.is_compiling until torch is known."""
    return False


class Marks:
    """The marks of one process."""

    def __init__(self, recorder: Recorder, prefixes: Prefixes) -> None:
        self.guard = Guard(recorder.count_swallowed)
        """Errors of ours end the marks, and not the recording."""
        self._recorder = recorder
        self._prefixes = prefixes
        self._counts: dict[tuple[str, CallSite], list[int]] = {}
        """Place on the page, and how often."""

    def attach(self) -> None:
        """Follow methods of torch's classes; once. Never raises Exception."""
        _current[:] = [self]
        modules: Any = sys.modules
        with self.guard:
            global _is_compiling  # noqa: PLW0603 (torch.compile knows torch's function as such)
            _is_compiling = modules["torch"].compiler.is_compiling
            leave_alone(_no_sync.__code__, deep=True)
            parallel: Any = modules["torch.nn.parallel.distributed"]
            follow(parallel.DistributedDataParallel, "no_sync", _no_sync)

    def no_sync(self, frame: FrameType) -> None:
        """Note that a user's line above ``frame`` leaves gradients local."""
        self._note(NO_SYNC, "", user_site(frame, self._prefixes))

    def awaits(self, keys: Sequence[str], frame: FrameType) -> None:
        """Note that a user's line above ``frame`` waits for keys of a store."""
        self._note(AWAITS_KEY, _text_of(keys), user_site(frame, self._prefixes))

    def sets(self, keys: Sequence[str], frame: FrameType) -> None:
        """Note that a user's line above ``frame`` has set keys of a store."""
        self._note(SETS_KEY, _text_of(keys), user_site(frame, self._prefixes))

    def thread_died(self, failed: threading.ExceptHookArgs) -> None:
        """Note what has ended a thread."""
        if failed.exc_type is SystemExit:
            return  # Python says nothing of it either
        name = failed.thread.name if failed.thread is not None else "?"
        site = raised_at(failed.exc_traceback, self._prefixes)
        self._note(THREAD_DIED, f"{name}: {_described(failed.exc_type, failed.exc_value)}", site)

    def handles(self, error: BaseException) -> None:
        """Note an exception that the main thread is handling for longer than a moment."""
        site = raised_at(traceback_of(error), self._prefixes)
        self._note(HANDLES, _described(type(error), error), site)

    def _note(self, kind: str, text: str, site: CallSite) -> None:
        mark = self._counts.get((kind, site))
        if mark is None:
            if len(self._counts) >= MOST:
                return
            mark = self._counts[kind, site] = [len(self._counts), 0]
        mark[1] += 1
        self._recorder.set_mark(mark[0], kind, text, mark[1], *site)


def _described(kind: type, error: BaseException | None) -> str:
    """The exception's type and its text without secrets."""
    from hangwatch.safety import redaction  # as late as possible: it takes 10 ms

    said = "" if error is None else redaction.text(text_of(error), 1000)
    return f"{type_name(kind)}: {said}"


def _text_of(keys: Sequence[str]) -> str:
    """Keys of a store as text without secrets, one a line; of many the first ones."""
    from hangwatch.safety import redaction  # as late as possible: it takes 10 ms

    return "\n".join(redaction.text(key, MOST_OF_A_KEY) for key in keys[:MOST_KEYS])


def _no_sync(_module: Any, _result: Any) -> None:
    if _is_compiling():
        return  # torch.compile asks what this does, and leaves it out
    marks = _current[0]
    if marks.guard.open:
        with marks.guard:
            marks.no_sync(sys._getframe())
