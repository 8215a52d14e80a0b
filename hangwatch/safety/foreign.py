"""Recognises exceptions that come up in statements of ours and are meant for the program."""

from __future__ import annotations

import functools
import os
import signal
import sys
from types import FunctionType, MethodType

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, TracebackType
    from typing import Any

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
namespace_of = vars(type)["__dict__"].__get__
bases_of = vars(type)["__mro__"].__get__
traceback_of = vars(BaseException)["__traceback__"].__get__
args_of = vars(BaseException)["args"].__get__
"""The interpreter's own getters, whatever a class of the program defines."""
_NAMED = frozenset(signal.Signals)
_TAKES_ANY = 0x04
"""CO_VARARGS of inspect, a slow import."""
_RAISED_WITHOUT_A_WORD = (MemoryError, StopIteration, AssertionError, RecursionError)
"""Exceptions that may come up in our own frames without arguments."""


class Ignoring:
    """``with Ignoring(OSError):`` is contextlib.suppress for what runs in a training process.

    An alarm of the program raises TimeoutError, which is an OSError and has to reach it.
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
        """Swallow exceptions of these kinds that are ours."""
        return isinstance(error, self._kinds) and not is_foreign(error)


def is_foreign(error: BaseException) -> bool:
    """Return True if ``error``, which came up in a statement of ours, is meant for the program.

    So is an exception that ends a program, one that a signal handler raised, and one that
    another thread sent (PyThreadState_SetAsyncExc, as time-outs and notebooks do).
    """
    if not isinstance(error, Exception):
        return True
    handlers = _handlers()
    at: FrameType | None = None
    for caller, frame in _calls(error):
        if frame.f_code in handlers or (caller is not None and _was_given(frame, caller)):
            return True
        at = frame
    if at is None:
        return False
    if _is_ours(at):
        return _is_of_others(error) or _is_bare(error)
    # It may have struck in code that ours had called, such as the import of a module.
    return _is_of_a_library(at) and _is_of_others(error)


def signal_of(error: BaseException) -> str:
    """Return the name of the signal whose handler raised ``error``, empty if none did.

    The interpreter gives a handler the number of the signal and the frame that it interrupted.
    So a call of the same function by the program, or of another one in the same wrapper, is none.
    """
    for caller, frame in _calls(error):
        if caller is not None:
            number = _number_given(frame, caller)
            if number is not None:
                return signal.Signals(number).name if number in _NAMED else f"signal {number}"
    return ""


def _calls(error: BaseException) -> Iterator[tuple[FrameType | None, FrameType]]:
    """Yield each frame of a traceback, outermost first, with the one before it."""
    caller: FrameType | None = None
    trace: TracebackType | None = traceback_of(error)
    while trace is not None:
        yield caller, trace.tb_frame
        caller, trace = trace.tb_frame, trace.tb_next


def _number_given(frame: FrameType, interrupted: FrameType) -> int | None:
    """Return the number of the signal that ``frame`` handles, None if it handles none."""
    if _is_ours(frame):
        return None
    code, found = frame.f_code, frame.f_locals
    given = [found.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & _TAKES_ANY:
        more = found.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += more if type(more) is tuple else ()
    for pair in (given[:2], given[1:3]):  # those of a function, of a method
        number, at = (*pair, None, None)[:2]
        if at is interrupted and type(number) is int and number in signal.valid_signals():
            return number
    return None


def _handlers() -> set[CodeType]:
    """Return the code of the signal handlers that are installed now."""
    codes = (_code_of(signal.getsignal(number)) for number in signal.valid_signals())
    return {code for code in codes if code is not None}


def _code_of(handler: Any) -> CodeType | None:
    """Return the code that a call of a handler runs, without calling code of the program."""
    while type(handler) is functools.partial:
        handler = handler.func
    if type(handler) is MethodType:
        handler = handler.__func__
    if type(handler) is not FunctionType:
        spaces = (namespace_of(base) for base in bases_of(type(handler)))
        handler = next((space["__call__"] for space in spaces if "__call__" in space), None)
    return handler.__code__ if type(handler) is FunctionType else None


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _was_given(frame: FrameType, interrupted: FrameType) -> bool:
    """Return True if ``frame`` is a signal handler's, to which ``interrupted`` was given.

    It need not be installed any more, and may take its arguments as ``*args``.
    """
    if _is_ours(frame):
        return False
    # Of a module they are its globals, which may grow.
    for value in list(frame.f_locals.values()):
        values = value if type(value) is tuple else (value,)
        if any(item is interrupted for item in values):
            return True
    return False


def _is_of_a_library(frame: FrameType) -> bool:
    """Return True if a frame is Python's or torch's, which raise no class of others.

    So is code that Python has generated for named tuples, and for dataclasses of ours.
    """
    file = frame.f_code.co_filename
    module = str(frame.f_globals.get("__name__"))
    if file == "<string>":
        return module.startswith(("namedtuple_", "hangwatch."))
    of_python = file.startswith(("<frozen ", _PYTHON)) and "site-packages" not in file
    return of_python or module.partition(".")[0] == "torch"


def _is_of_others(error: Exception) -> bool:
    """Return True if the class of an exception is neither Python's, torch's nor ours.

    Another one can only have been sent to a frame that raises none.
    """
    root = type(error).__module__.partition(".")[0]
    return root not in sys.stdlib_module_names and root not in {"builtins", "torch", "hangwatch"}


def _is_bare(error: Exception) -> bool:
    """Return True if ``error`` looks as if it was sent by another thread.

    Threads send a class, of which the interpreter makes an instance without arguments.
    """
    return not args_of(error) and not isinstance(error, _RAISED_WITHOUT_A_WORD)
