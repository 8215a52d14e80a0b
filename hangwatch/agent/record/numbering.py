"""Places in a group from c10d's own number, for the Python recorder.

The same rules as in native/groups.cpp, without its care for threads that issue
calls in one group at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from hangwatch.operations import Method


class Numbering:
    """Places of one group, whose backends are such as ``cpu:gloo,cuda:gloo``.

    On gloo c10d's number counts point-to-point calls too, on NCCL it does not.
    Elsewhere, and where it cannot be read, the calls that Python issues are
    counted here, and those of C++ are not seen.
    """

    def __init__(self, backends: str) -> None:
        names = {part.rpartition(":")[2] for part in backends.split(",")}
        self._counts_p2p = names == {"gloo"}
        self._readable = self._counts_p2p or names == {"nccl"}
        self._adjust = 0
        """c10d's number less the places."""
        self._own = 0
        self._p2p = 0
        self._unsettled = 0
        """Calls in progress that will change ``_adjust``."""

    def begin(self, method: Method, group: Any) -> tuple[int, int]:
        """(number of the call, c10d's number before it or -1)."""
        before = self._read(group)
        places, p2p, shifts = method.places, method.p2p, self._shifts(method)
        # Nothing is called from here on, so nothing comes in between.
        self._own += places
        self._p2p += p2p
        if shifts:
            self._unsettled += 1
        if method.p2p:
            return self._p2p, before
        return (before - self._adjust if before >= 0 else self._own - method.places) + 1, before

    def cancel(self, method: Method) -> None:
        """The call is not made."""
        self._own -= method.places
        self._p2p -= method.p2p
        if self._shifts(method):
            self._unsettled -= 1

    def end(self, method: Method, group: Any, before: int) -> None:
        """The call has returned or raised."""
        if not self._shifts(method):
            return
        self._unsettled -= 1
        after = self._read(group)
        if after >= before >= 0:
            self._adjust += after - before - method.places

    def places(self, number: int) -> int:
        """How many places c10d's number stands for, -1 where that cannot be told now."""
        if not self._readable or self._unsettled:
            return -1
        return number - self._adjust

    def _shifts(self, method: Method) -> bool:
        """Whether c10d's number grows by something else than the places taken."""
        return self._counts_p2p and (method.p2p or method.places > 1)

    def _read(self, group: Any) -> int:
        if self._readable:
            try:
                return int(group._get_sequence_number_for_group())
            except RuntimeError as error:
                if is_foreign(error):
                    raise
                self._readable = False
        return -1
