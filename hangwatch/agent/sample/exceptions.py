"""The exceptions that end a rank or that it is handling; hooks are left alone."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from hangwatch.agent.call_site import raised_at
from hangwatch.agent.exception_text import text_of, type_name
from hangwatch.model.json_page import packed
from hangwatch.safety.foreign import bases_of, signal_of, traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from hangwatch.agent.call_site import Prefixes
    from hangwatch.agent.record.recorder import Recorder

MESSAGE_BYTES = 500
READ_CHARS = 4000
"""Characters of a text that are searched for secrets, which are cut out of it."""
CHAIN = 100
"""Exceptions that are followed back at most: they may lead back to one another."""
RECORDED = 3
"""The number of them that is recorded."""
LED_BYTES = 100
THROWN_BYTES = 200
"""With these bounds all has room in the page's field of 1,024 bytes."""
_CAUSE = vars(BaseException)["__cause__"].__get__
_CONTEXT = vars(BaseException)["__context__"].__get__
_PROCESS = "multiprocessing/process.py"
_FORKING = {("_launch", "popen_fork.py"), ("main", "forkserver.py")}
"""Functions of multiprocessing that fork, and end the child."""
_LAST = -(1 << 30)
"""The priority of the finalizer that multiprocessing calls last."""
_IS_HIDDEN = vars(BaseException)["__suppress_context__"].__get__
"""The interpreter's own, whatever a class of the program's makes of it."""


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
        """id() of the recorded exception: a reference would keep its frames alive."""

    @property
    def recorded(self) -> bool:
        """True if an exception has ended this process."""
        return self._recorded != 0

    def uncaught(self) -> BaseException | None:
        """Return the exception that ends this process, None if there is none."""
        error: BaseException | None = getattr(sys, "last_value", None)
        # Interactive sessions and test runners set it, too, and go on.
        if error is None or hasattr(sys, "ps1") or sys.flags.interactive or self._runs():
            return None
        return error

    def record_uncaught(self) -> bool:
        """Record the exception that ends this process; False if there is none."""
        error = self.uncaught()
        if error is None:
            return False
        self.record(error)
        return True

    def record(self, error: BaseException) -> None:
        """Record the exception that ends this process."""
        if id(error) != self._recorded:
            self._recorded = id(error)
            site = raised_at(traceback_of(error), self._prefixes)
            kind, text = self._recorder.last_thrown()
            thrown = cut(f"{kind}: {redacted(text)}", THROWN_BYTES) if kind else ""
            after = [
                cut(f"{type_name(type(led))}: {message(led)}", LED_BYTES) for led in _led_to(error)
            ]
            said = cut(message(error), MESSAGE_BYTES)
            field = packed(said, thrown, signal_of(error), after)
            self._recorder.set_exception(type_name(type(error)), field, *site)

    def _runs(self) -> bool:
        """Return True if the main program has not ended: it still stands on its stack."""
        frame = self._outermost()
        if frame is None:
            return False
        return frame.f_code.co_name == "<module>" or frame.f_code.co_filename == "<frozen runpy>"


def at_end_of_child(raised: Callable[[], None], over: Callable[[], None]) -> None:
    """Have two functions called when this process ends, if multiprocessing started it.

    raised: called while the exception that ends it is handled, which multiprocessing keeps from
    the interpreter: see error_of_child(). In vain where the program ends itself by ``sys.exit``,
    and from Python 3.13 on, which handles the exception before it runs finalizers.
    over: called after the program's own finalizers, when its children have been joined.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    Finalize(None, raised, exitpriority=0)
    Finalize(None, over, exitpriority=_LAST)


def error_of_child() -> BaseException | None:
    """Return, in a finalizer, the exception that ends a process which multiprocessing started."""
    error = sys.exc_info()[1]
    if error is None or not _is_in(error, "_bootstrap", _PROCESS):
        return None  # or what the parent was handling when it forked this one
    if not any(base is SystemExit for base in bases_of(type(error))):
        return error
    last = _is_in(error, "_wrap", "torch/multiprocessing/spawn.py", innermost=True)
    return _CONTEXT(error) if last else None


def fork_ends_well() -> bool:
    """Return True, in a finalizer, if multiprocessing forked this process and ends it with code 0.

    It ends a fork by ``os._exit``, which no atexit handler of before the fork sees.
    """
    ends_well = False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        function, path = frame.f_code.co_name, frame.f_code.co_filename
        file = path.rpartition("/multiprocessing/")[2]
        if (function, file) == ("_bootstrap", "process.py"):  # before Python 3.13
            ends_well = frame.f_locals.get("exitcode", _code_of_exit()) == 0
        elif (function, file) in _FORKING:
            return ends_well or frame.f_locals.get("code") == 0
        frame = frame.f_back
    return False


def _code_of_exit() -> int:
    """Return the exit code that ``sys.exit`` gives a process which multiprocessing started."""
    error = sys.exc_info()[1]
    if type(error) is not SystemExit or not _is_in(error, "_bootstrap", _PROCESS):
        return 1
    return 0 if error.code is None else error.code if type(error.code) is int else 1


def has_other_threads() -> bool:
    """Return True if threads live that Python waits for before it ends this process."""
    main = threading.main_thread()
    return any(not thread.daemon for thread in threading.enumerate() if thread is not main)


def _is_in(error: BaseException, function: str, file: str, *, innermost: bool = False) -> bool:
    """Return True if the outermost frame of the traceback is that function of that file.

    innermost: look at the frame that raised the exception instead.
    """
    trace: TracebackType | None = traceback_of(error)
    while innermost and trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return code.co_name == function and code.co_filename.endswith(file)


def innermost_frame_of_main_thread() -> FrameType | None:
    """Return the Python frame that the main thread is in."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def outermost_frame_of_main_thread() -> FrameType | None:
    """Return the frame that all others of the main thread were called from."""
    frame = innermost_frame_of_main_thread()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def handled_by_main_thread() -> BaseException | None:
    """Return the exception that the main thread is handling now."""
    current = sys._current_exceptions().get(threading.main_thread().ident or 0)
    return current[1] if isinstance(current, tuple) else current  # a tuple until Python 3.11


def _led_to(error: BaseException) -> list[BaseException]:
    """Return the exceptions that a traceback of ``error`` shows before it, the latest first.

    Of those that the program hides (``from None``), for its own reasons, only torch's. Of many,
    the latest, the first and the latest of torch's.
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
    if len(led) <= RECORDED:
        return led
    of_torch = next((index for index, error in enumerate(led) if _is_of_torch(error)), 1)
    return [led[index] for index in sorted({0, of_torch, len(led) - 1})]


def _is_of_torch(error: BaseException) -> bool:
    """Return True if ``error`` was raised in a file of torch's, or in C++ called from there."""
    trace = traceback_of(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = getattr(sys.modules.get("torch"), "__file__", None)
    if trace is None or not isinstance(where, str):
        return False
    return bool(trace.tb_frame.f_code.co_filename.startswith(f"{os.path.dirname(where)}/"))


def message(error: BaseException) -> str:
    """Return the exception's text without secrets."""
    return redacted(text_of(error))


def redacted(text: str) -> str:
    """Return the first READ_CHARS of a text without secrets."""
    from hangwatch.safety import redaction  # as late as possible: it takes 10 ms

    return redaction.text(text, READ_CHARS)


def cut(text: str, most_bytes: int) -> str:
    """Return the beginning of ``text`` that takes at most ``most_bytes`` in UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= most_bytes else data[:most_bytes].decode("utf-8", "ignore")
