"""The firewall between our statements and the user's program (DESIGN, section 5)."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, TracebackType

LIMIT = 5
"""After so many swallowed errors something is wrong with us, and we stop."""
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_RAISED_WITHOUT_A_WORD = (MemoryError, StopIteration, AssertionError, RecursionError)
"""What may come up in our own frames without arguments."""


class Guard:
    """``with guard:`` around our own statements: what they raise never gets out.

    Only Exception is swallowed, and not what is meant for the user's code: that of a
    signal handler which happened to interrupt us, or of another thread. count is called
    for each swallowed error, disarm once with the reason, keep with each error.
    """

    def __init__(
        self,
        count: Callable[[], object],
        disarm: Callable[[str], object],
        keep: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        self._count = count
        self._disarm = disarm
        self._keep = keep
        self.swallowed = 0
        self.last = ""
        """The last swallowed error, for people."""

    @property
    def open(self) -> bool:
        """Whether we may still act at all."""
        return self.swallowed < LIMIT

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Swallow an Exception of ours; all else goes its way."""
        if error is None or not isinstance(error, Exception) or is_foreign(error):
            return False
        self.swallow(error)
        return True

    def swallow(self, error: Exception) -> None:
        """Count an error of ours that was kept from the job; raises none of ours."""
        self.swallowed += 1
        try:
            self.last = f"{type(error).__name__}: {error}"
            self._count()
            self._keep(error)
            if self.swallowed == LIMIT:
                self._disarm(f"{LIMIT} errors of our own, the last of them {self.last}")
        except Exception as another:
            if is_foreign(another):
                raise
            self.swallowed = max(self.swallowed, LIMIT)


def is_foreign(error: BaseException) -> bool:
    """Whether an exception that came up in a statement of ours is meant for the user's code.

    What ends a program is, what a signal handler raised, and what another thread has sent
    (PyThreadState_SetAsyncExc, as time-outs and notebooks do).
    """
    if not isinstance(error, Exception):
        return True
    handlers = _handlers()
    before: FrameType | None = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in handlers or (before is not None and _was_given(frame, before)):
            return True
        before, trace = frame, trace.tb_next
    if before is None:
        return False
    if _is_ours(before):
        return _is_of_others(error) or _is_bare(error)
    # It may have struck in what ours had called, such as the import of a module.
    return _is_of_a_library(before) and _is_of_others(error)


def _handlers() -> set[CodeType]:
    """The code of the signal handlers that are installed now."""
    found: set[CodeType] = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        if not hasattr(handler, "__code__") and callable(handler):
            handler = type(handler).__call__
        handler = getattr(handler, "__func__", handler)  # a bound method
        code = getattr(handler, "__code__", None)
        if code is not None:
            found.add(code)
    return found


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _was_given(frame: FrameType, interrupted: FrameType) -> bool:
    """Whether a frame is that of a signal handler, which is given the one that it interrupts.

    It need not be installed any more, and may take what it is given as ``*args``.
    """
    if _is_ours(frame):
        return False
    values = list(frame.f_locals.values())  # of a module they are its globals, which may grow
    several = (one for value in values if type(value) is tuple for one in value)
    return any(value is interrupted for value in (*values, *several))


def _is_of_a_library(frame: FrameType) -> bool:
    """Whether a frame is Python's or torch's, which raise no class of others.

    That is also what Python has generated for named tuples, and for dataclasses of ours.
    """
    file = frame.f_code.co_filename
    module = str(frame.f_globals.get("__name__"))
    if file == "<string>":
        return module.startswith(("namedtuple_", "hangwatch."))
    of_python = file.startswith(("<frozen ", _PYTHON)) and "site-packages" not in file
    return of_python or module.partition(".")[0] == "torch"


def _is_of_others(error: Exception) -> bool:
    """Whether the class of an exception is neither Python's, torch's nor ours.

    Such a one can only have been sent to a frame that raises none.
    """
    root = type(error).__module__.partition(".")[0]
    return root not in sys.stdlib_module_names and root not in {"builtins", "torch", "hangwatch"}


def _is_bare(error: Exception) -> bool:
    """Whether an exception looks like one that was sent, which ours raise none like.

    A class is sent, of which the interpreter makes an instance without arguments.
    """
    return not error.args and not isinstance(error, _RAISED_WITHOUT_A_WORD)
