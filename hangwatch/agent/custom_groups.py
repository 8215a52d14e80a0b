"""Process groups whose class is written in Python (dist.Backend.register_backend).

Their methods are not those of torch's class, so they are wrapped one by one in
the class that defines them. Methods that it merely inherits are left alone: C++
finds overrides by name, and an override that was not there would be called back
by the very method that it calls.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from hangwatch.agent.call_site import public_name
from hangwatch.agent.methods import METHODS, Method, read_signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.groups import Groups
    from hangwatch.agent.guard import Guard
    from hangwatch.agent.recorder import Recorder

_MARK = "_recorded_by_hangwatch"
_RETURN_AT_ONCE = frozenset({"isend", "irecv", "batch_isend_irecv"})


class Call(NamedTuple):
    """A call that is being made."""

    event: int
    """Index of its event."""
    thread: int
    group: int
    """id() of it."""
    waited_for: bool
    """Whether torch waits for what it returns before the user's call returns."""


class CustomCalls:
    """Records the calls of such groups, each call once however classes call each other.

    c10d has no number for them, so their places are counted here. Their handles
    are of any class, so a wait is not seen: of a call that torch waits for, the
    rank counts as blocked until the handle is dropped or the next call is made.
    """

    def __init__(
        self, recorder: Recorder, groups: Groups, guard: Guard, prefixes: tuple[str, ...]
    ) -> None:
        self.guard = guard
        self._recorder = recorder
        self._groups = groups
        self._prefixes = prefixes
        self._inside: set[tuple[int, int]] = set()
        """(thread, group) of the calls that are being made."""
        self._handles: dict[tuple[int, int], tuple[weakref.ref[Any], int]] = {}
        """The handle that torch waits for in a thread, and the event of its call."""

    def begin(
        self, method: Method, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        """Record a call that is about to be made; None if it is part of another."""
        known = self._groups.find(group)
        key = threading.get_ident(), id(group)
        if known is None or known.slot < 0 or key in self._inside:
            return None
        self._end_wait(key)
        signature = read_signature(method, args, kwargs, known.ranks)
        op = public_name(sys._getframe(), self._prefixes) or method.wire
        place = known.counts[method.p2p] + 1
        known.counts[method.p2p] += max(1, method.places)
        index = self._recorder.record_begin(
            known.slot, op, method.wire, place, method.p2p, *signature
        )
        self._inside.add(key)
        return Call(index, *key, not signature.is_async and op not in _RETURN_AT_ONCE)

    def end(self, call: Call, result: object, *, failed: bool) -> None:
        """The call has returned or raised."""
        key = call.thread, call.group
        self._inside.discard(key)
        if failed or result is None or not call.waited_for:
            self._recorder.record_end(call.event, failed)
            return

        def dropped(handle: weakref.ref[Any]) -> None:
            with self.guard:
                if self._handles.get(key, (None, -1))[0] is handle:
                    self._end_wait(key)

        self._handles[key] = weakref.ref(result, dropped), call.event

    def end_finished_waits(self) -> None:
        """Look at handles that somebody keeps, although they are complete."""
        for key, (handle, _) in list(self._handles.items()):
            work = handle()
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
    @functools.wraps(original)
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
