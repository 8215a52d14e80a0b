"""Process groups whose class is written in Python (dist.Backend.register_backend).

Their methods are not those of torch's class, so they are wrapped one by one in
the class that defines them. Methods that it merely inherits are left alone: C++
finds overrides by name, and an override that was not there would be called back
by the very method that it calls.
"""

from __future__ import annotations

import sys
import threading
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hangwatch.agent.call_site import public_name
from hangwatch.agent.guard import Ticket
from hangwatch.agent.record.hidden_wrappers import standing_for, uncounted
from hangwatch.agent.record.signature import read_signature
from hangwatch.model.operations import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.call_site import Prefixes
    from hangwatch.agent.guard import Guard
    from hangwatch.agent.record.groups import Groups
    from hangwatch.agent.record.recorder import Recorder
    from hangwatch.model.operations import Method

_MARK = "_recorded_by_hangwatch"
_RETURN_AT_ONCE = frozenset({"isend", "irecv", "batch_isend_irecv"})


class Call(Ticket):
    """A call that is being made. Over at the latest when its wrapper's frame is gone."""

    def __init__(self, thread: int, group: int) -> None:
        self.key = thread, group
        """Ident of the thread, and id() of the group."""
        self.event = -1
        """Index of its event, -1 before there is one."""
        self.waited_for = False
        """True if torch waits for what it returns before the user's call returns."""


class CustomCalls:
    """Records the calls of groups written in Python, each once however classes call each other.

    c10d has no number for them, so their sequence numbers are counted here. Their handles
    are of any class, so a wait is not seen: of a call that torch waits for, the
    rank counts as blocked until the handle is dropped or the next call is made.
    """

    def __init__(
        self, recorder: Recorder, groups: Groups, guard: Guard, prefixes: Prefixes
    ) -> None:
        self.guard = guard
        self._recorder = recorder
        self._groups = groups
        self._prefixes = prefixes
        self._inside: dict[tuple[int, int], weakref.ref[Call]] = {}
        """The calls that are being made."""
        self._handles: dict[tuple[int, int], tuple[weakref.ref[Any], int]] = {}
        """Handles that torch waits for in a thread, each with the event of its call."""

    def begin(
        self, method: Method, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        """Record a call that is about to be made; return None if it is part of another."""
        known = self._groups.find(group)
        call = Call(threading.get_ident(), id(group))
        if known is None or known.slot < 0 or self._is_inside(call.key):
            return None
        self._end_wait(call.key)
        signature = read_signature(method, args, kwargs, known.ranks)
        op = public_name(sys._getframe(), self._prefixes) or method.wire
        call.waited_for = not signature.is_async and op not in _RETURN_AT_ONCE
        self._inside[call.key] = weakref.ref(call)
        counts, kind, seq_count = known.counts, method.p2p, max(1, method.seq_count)
        seq = counts[kind] + 1
        counts[kind] += seq_count
        try:
            call.event = self._recorder.record_begin(
                known.slot, op, method.wire, seq, method.p2p, *signature
            )
        except BaseException:  # the call is not made, if this is not ours
            counts[kind] -= seq_count
            call.over = True
            raise
        return call

    def _is_inside(self, key: tuple[int, int]) -> bool:
        reference = self._inside.get(key)
        call = reference() if reference is not None else None
        return call is not None and not call.over

    def end(self, call: Call, result: object, *, failed: bool) -> None:
        """Record that the call has returned ``result``, or raised."""
        key = call.key
        call.over = True
        self._inside.pop(key, None)
        if failed or result is None or not call.waited_for:
            self._recorder.record_end(call.event, failed)
            return

        def dropped(handle: weakref.ref[Any]) -> None:
            with self.guard:
                if self._handles.get(key, (None, -1))[0] is handle:
                    self._end_wait(key)

        self._handles[key] = weakref.ref(result, dropped), call.event

    def end_finished_waits(self) -> None:
        """End the waits for handles that are complete, although they are kept."""
        for key in list(self._handles):
            entry = self._handles.get(key)
            if entry is None:
                continue
            work = entry[0]()
            if work is None or work.is_completed():
                self._end_wait(key)

    def _end_wait(self, key: tuple[int, int]) -> None:
        _, index = self._handles.pop(key, (None, -1))
        if index >= 0:
            self._recorder.record_end(index, False)  # noqa: FBT003 (the native module's own)


def wrap_class(kind: type, base: type, calls: Callable[[], CustomCalls | None]) -> None:
    """Wrap what kind, and the classes between it and base, define themselves."""
    for owner in kind.__mro__[: kind.__mro__.index(base)]:
        for method in METHODS:
            own = owner.__dict__.get(method.name)
            if isinstance(own, FunctionType) and not hasattr(own, _MARK):
                setattr(owner, method.name, _wrapper(method, own, calls))


def _wrapper(
    method: Method, original: FunctionType, current: Callable[[], CustomCalls | None]
) -> Callable[..., Any]:
    @standing_for(original)
    @uncounted
    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        calls = current()
        call = None
        if calls is not None:
            with calls.guard:
                call = calls.begin(method, self, args, kwargs)
        if calls is None or call is None:
            return original(self, *args, **kwargs)
        result = None
        failed = True
        try:
            result = original(self, *args, **kwargs)
            failed = False
            return result
        finally:
            with calls.guard:
                calls.end(call, result, failed=failed)

    setattr(wrapper, _MARK, True)
    return wrapper
