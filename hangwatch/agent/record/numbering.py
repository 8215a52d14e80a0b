"""Sequence numbers in a group from c10d's own number, for the Python recorder.

The same rules as in native/groups.cpp, without its care for threads that issue
calls in one group at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangwatch.model.backends import NCCL
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from hangwatch.model.operations import Method


class Numbering:
    """Sequence numbers of one group, whose backends are such as ``cpu:gloo,cuda:gloo``.

    On gloo c10d's number counts point-to-point calls too, on NCCL it does not.
    Elsewhere, and where it cannot be read, the calls that Python issues are
    counted here, and those of C++ are not seen.
    """

    def __init__(self, backends: str) -> None:
        names = {part.rpartition(":")[2] for part in backends.split(",")}
        self._counts_p2p = names == {"gloo"}
        self._readable = self._counts_p2p or (len(names) == 1 and names <= set(NCCL))
        self._adjust = 0
        """c10d's number less the sequence number."""
        self._own = 0
        self._p2p = 0
        self._unsettled = 0
        """Calls in progress that will change ``_adjust``."""

    def begin(self, method: Method, group: Any) -> tuple[int, int]:
        """Return (sequence number of the call, c10d's number before it or -1)."""
        before = self._read(group)
        count, p2p, shifts = method.seq_count, method.p2p, self._shifts(method)
        # Nothing is called from here on, so nothing comes in between.
        self._own += count
        self._p2p += p2p
        if shifts:
            self._unsettled += 1
        if method.p2p:
            return self._p2p, before
        return (before - self._adjust if before >= 0 else self._own - method.seq_count) + 1, before

    def cancel(self, method: Method) -> None:
        """Take back what begin() counted: the call is not made."""
        self._own -= method.seq_count
        self._p2p -= method.p2p
        if self._shifts(method):
            self._unsettled -= 1

    def end(self, method: Method, group: Any, before: int) -> None:
        """Learn from c10d's number now that the call has returned or raised."""
        if not self._shifts(method):
            return
        self._unsettled -= 1
        after = self._read(group)
        if after >= before >= 0:
            self._adjust += after - before - method.seq_count

    def last_seq(self, number: int) -> int:
        """Return the last sequence number if c10d's is ``number``; -1 if that is not known now."""
        if not self._readable or self._unsettled:
            return -1
        return number - self._adjust

    def _shifts(self, method: Method) -> bool:
        """Return True if c10d's number grows by something else than ``method.seq_count``."""
        return self._counts_p2p and (method.p2p or method.seq_count > 1)

    def _read(self, group: Any) -> int:
        if self._readable:
            try:
                return int(group._get_sequence_number_for_group())
            except RuntimeError as error:
                if is_foreign(error):
                    raise
                self._readable = False
        return -1
