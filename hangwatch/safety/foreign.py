"""Exceptions that come up in statements of ours and are meant for the user's code."""

from __future__ import annotations

import functools
import os
import signal
import sys
from types import FunctionType, MethodType

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType
    from typing import Any

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_NAMESPACE = vars(type)["__dict__"].__get__
_BASES = vars(type)["__mro__"].__get__
_TRACEBACK = vars(BaseException)["__traceback__"].__get__
_ARGS = vars(BaseException)["args"].__get__
"""The interpreter's own, whatever a class of the program's makes of them."""
_NAMED = frozenset(signal.Signals)
_ASKS_TO_END = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_RAISED_WITHOUT_A_WORD = (MemoryError, StopIteration, AssertionError, RecursionError)
"""What may come up in our own frames without arguments."""


class Ignoring:
    """``with Ignoring(OSError):`` is contextlib.suppress for what runs in a training process.

    An alarm of the program raises TimeoutError, which is an OSError, and has to reach it.
    """

    def __init__(self, *kinds: type[Exception]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Swallow those kinds where they are ours."""
        return isinstance(error, self._kinds) and not is_foreign(error)


def is_foreign(error: BaseException) -> bool:
    """Whether an exception that came up in a statement of ours is meant for the user's code.

    What ends a program is, what a signal handler raised, and what another thread has sent
    (PyThreadState_SetAsyncExc, as time-outs and notebooks do).
    """
    if not isinstance(error, Exception) or is_sent(error):
        return True
    before: FrameType | None = None
    trace: TracebackType | None = _TRACEBACK(error)
    while trace is not None:
        before, trace = trace.tb_frame, trace.tb_next
    if before is None:
        return False
    if _is_ours(before):
        return _is_of_others(error) or _is_bare(error)
    # It may have struck in what ours had called, such as the import of a module.
    return _is_of_a_library(before) and _is_of_others(error)


def is_sent(error: BaseException) -> bool:
    """Whether a signal handler has raised an exception."""
    handlers = _handlers()
    before: FrameType | None = None
    trace: TracebackType | None = _TRACEBACK(error)
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in handlers or (before is not None and _was_given(frame, before)):
            return True
        before, trace = frame, trace.tb_next
    return False


def signal_of(error: BaseException) -> str:
    """The name of the signal whose handler has raised an exception, empty where none has.

    Of one that handles several that which asks a program to end, where it is among them.
    """
    handlers = _handlers()
    trace: TracebackType | None = _TRACEBACK(error)
    while trace is not None:
        name = handlers.get(trace.tb_frame.f_code)
        if name is not None:
            return name
        trace = trace.tb_next
    return ""


def _handlers() -> dict[CodeType, str]:
    """The code of the signal handlers that are installed now, and the signal of each."""
    found: dict[CodeType, str] = {}
    for number in (*signal.valid_signals(), *_ASKS_TO_END):
        code = _code_of(signal.getsignal(number))
        if code is not None:
            found[code] = signal.Signals(number).name if number in _NAMED else f"signal {number}"
    return found


def _code_of(handler: Any) -> CodeType | None:
    """What a call of a handler runs; nothing of the program's is asked for it."""
    while type(handler) is functools.partial:
        handler = handler.func
    if type(handler) is MethodType:
        handler = handler.__func__
    if type(handler) is not FunctionType:
        spaces = (_NAMESPACE(base) for base in _BASES(type(handler)))
        handler = next((space["__call__"] for space in spaces if "__call__" in space), None)
    return handler.__code__ if type(handler) is FunctionType else None


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
    return not _ARGS(error) and not isinstance(error, _RAISED_WITHOUT_A_WORD)
