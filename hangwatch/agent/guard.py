"""The firewall between our statements and the user's program (DESIGN, section 5)."""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType

LIMIT = 5
"""After so many swallowed errors something is wrong with us, and we stop."""


class Guard:
    """``with guard:`` around our own statements: what they raise never gets out.

    Only Exception is swallowed, and not what a signal handler of the user's
    raised while it happened to interrupt us: that is meant for the user's code.
    count is called for each swallowed error, disarm once with the reason.
    """

    def __init__(self, count: Callable[[], object], disarm: Callable[[str], object]) -> None:
        self._count = count
        self._disarm = disarm
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
        if error is None or not isinstance(error, Exception) or _from_signal_handler(trace):
            return False
        self.swallow(error)
        return True

    def swallow(self, error: Exception) -> None:
        """Count an error of ours that was kept from the job; never raises."""
        self.swallowed += 1
        try:
            self.last = f"{type(error).__name__}: {error}"
            self._count()
            if self.swallowed == LIMIT:
                self._disarm(f"{LIMIT} errors of our own, the last of them {self.last}")
        except Exception:
            self.swallowed = max(self.swallowed, LIMIT)


def _from_signal_handler(trace: TracebackType | None) -> bool:
    """Whether the traceback passes through a signal handler that is installed now."""
    handlers: set[CodeType] = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        if not hasattr(handler, "__code__") and callable(handler):
            handler = type(handler).__call__
        handler = getattr(handler, "__func__", handler)  # a bound method
        code = getattr(handler, "__code__", None)
        if code is not None:
            handlers.add(code)
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
