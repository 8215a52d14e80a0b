"""The exceptions that end a rank, and those that it is handling; hooks are left alone."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from hangwatch.agent.call_site import raised_at
from hangwatch.agent.exception_text import text_of, type_name
from hangwatch.page.chain import packed
from hangwatch.safety.foreign import signal_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from hangwatch.agent.call_site import Prefixes
    from hangwatch.agent.record.recorder import Recorder

MESSAGE_BYTES = 500
READ_CHARS = 4000
"""So much of it is looked at: what is cut out of it makes it shorter."""
CHAIN = 100
"""So many exceptions are followed back: they may lead back to one another."""
TOLD = 3
"""So many of them are told."""
LED_BYTES = 100
THROWN_BYTES = 200
"""All has room in the page's field of 1,024 bytes."""
_BASES = vars(type)["__mro__"].__get__
_CAUSE = vars(BaseException)["__cause__"].__get__
_CONTEXT = vars(BaseException)["__context__"].__get__
_IS_HIDDEN = vars(BaseException)["__suppress_context__"].__get__
_TRACEBACK = vars(BaseException)["__traceback__"].__get__
"""The interpreter's own, whatever a class of the program's makes of them."""


class Exceptions:
    """Records the uncaught exception once.

    The interpreter puts it into sys.last_value before it calls sys.excepthook
    (PyErr_PrintEx), which may itself take long.
    """

    def __init__(
        self,
        recorder: Recorder,
        prefixes: Prefixes,
        outermost: Callable[[], FrameType | None] | None = None,
    ) -> None:
        self._recorder = recorder
        self._prefixes = prefixes
        self._outermost = outermost or outermost_frame_of_main_thread
        self._recorded = 0
        """id() of the one that was recorded: a reference would keep its frames alive."""

    @property
    def recorded(self) -> bool:
        """Whether one has ended this process."""
        return self._recorded != 0

    def record_uncaught(self) -> bool:
        """Record the exception that ends this process; False if there is none."""
        error: BaseException | None = getattr(sys, "last_value", None)
        # Interactive sessions and test runners set it, too, and go on.
        if error is None or hasattr(sys, "ps1") or sys.flags.interactive or self._runs():
            return False
        self.record(error)
        return True

    def record(self, error: BaseException) -> None:
        """Record the exception that ends this process."""
        if id(error) != self._recorded:
            self._recorded = id(error)
            place = raised_at(_TRACEBACK(error), self._prefixes)
            kind, text = self._recorder.last_thrown()
            thrown = cut(f"{kind}: {redacted(text)}", THROWN_BYTES) if kind else ""
            after = [
                cut(f"{type_name(type(one))}: {message(one)}", LED_BYTES) for one in _led_to(error)
            ]
            field = packed(cut(message(error), MESSAGE_BYTES), thrown, signal_of(error), after)
            self._recorder.set_exception(type_name(type(error)), field, *place)

    def _runs(self) -> bool:
        """Whether the main program has not ended: it still stands on its stack."""
        frame = self._outermost()
        if frame is None:
            return False
        return frame.f_code.co_name == "<module>" or frame.f_code.co_filename == "<frozen runpy>"


def at_end_of_child(call: Callable[[], None]) -> None:
    """Be called when this process ends, where multiprocessing started it: see error_of_child().

    It keeps an exception from the interpreter. Nothing comes of it in another process, where
    the program ends itself by ``sys.exit``, and from Python 3.13 on, which handles the
    exception before it runs what was left to be run at the end.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    Finalize(None, call, exitpriority=0)


def error_of_child() -> BaseException | None:
    """The exception that ends a process that multiprocessing has started, in its finalizers."""
    error = sys.exc_info()[1]
    if error is None or not _is_in(error, "_bootstrap", "multiprocessing/process.py"):
        return None  # or what the parent was handling when it forked this one
    if not any(base is SystemExit for base in _BASES(type(error))):
        return error
    last = _is_in(error, "_wrap", "torch/multiprocessing/spawn.py", innermost=True)
    return _CONTEXT(error) if last else None


def _is_in(error: BaseException, function: str, file: str, *, innermost: bool = False) -> bool:
    """Whether the outermost frame that an exception has come through so far is a function's.

    innermost: that which it was raised in, instead.
    """
    trace: TracebackType | None = _TRACEBACK(error)
    while innermost and trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return code.co_name == function and code.co_filename.endswith(file)


def innermost_frame_of_main_thread() -> FrameType | None:
    """The Python frame that the main thread is in."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def outermost_frame_of_main_thread() -> FrameType | None:
    """The frame that all others of the main thread were called from."""
    frame = innermost_frame_of_main_thread()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def handled_by_main_thread() -> str:
    """Type of the exception that the main thread is handling now, or empty."""
    current = sys._current_exceptions().get(threading.main_thread().ident or 0)
    if isinstance(current, tuple):  # until Python 3.11
        return type_name(current[0]) if current[0] is not None else ""
    return type_name(type(current)) if current is not None else ""


def _led_to(error: BaseException) -> list[BaseException]:
    """The exceptions from which, or while which, another one was raised, the latest first.

    They are those that a traceback shows. Of what the program hides (``from None``), which may
    have its reasons, there is only what torch has raised. Of many there are the latest, the first
    and the latest of torch's.
    """
    led: list[BaseException] = []
    before: BaseException | None = error
    hidden = False
    for _ in range(CHAIN):
        cause = _CAUSE(before)
        hidden = hidden or (cause is None and _IS_HIDDEN(before))
        before = _CONTEXT(before) if cause is None else cause
        if before is None or before is error:
            break
        if not hidden or _is_of_torch(before):
            led.append(before)
    if len(led) <= TOLD:
        return led
    of_torch = next((place for place, one in enumerate(led) if _is_of_torch(one)), 1)
    return [led[place] for place in sorted({0, of_torch, len(led) - 1})]


def _is_of_torch(error: BaseException) -> bool:
    """Whether an exception was raised in a file of torch's, or in C++ that it has called."""
    trace = _TRACEBACK(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = getattr(sys.modules.get("torch"), "__file__", None)
    if trace is None or not isinstance(where, str):
        return False
    return bool(trace.tb_frame.f_code.co_filename.startswith(f"{os.path.dirname(where)}/"))


def message(error: BaseException) -> str:
    """What the exception says, without secrets."""
    return redacted(text_of(error))


def redacted(text: str) -> str:
    """A text without secrets; so much of it as is looked at."""
    from hangwatch.safety import redaction  # as late as possible: it takes 10 ms

    return redaction.text(text, READ_CHARS)


def cut(text: str, most_bytes: int) -> str:
    """A text of at most so many bytes in UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= most_bytes else data[:most_bytes].decode("utf-8", "ignore")
