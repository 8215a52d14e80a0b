"""The firewall between our statements and the user's program (DESIGN, section 5)."""

from __future__ import annotations

from hangwatch.safety.foreign import is_foreign

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

LIMIT = 5
"""Swallowed errors after which something is wrong with us, and we stop."""


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
        """True until LIMIT errors were swallowed."""
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
