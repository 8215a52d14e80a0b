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
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hangwatch.agent.call_site import public_name
from hangwatch.agent.methods import METHODS, Method, read_signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.groups import Groups
    from hangwatch.agent.guard import Guard
    from hangwatch.agent.recorder import Recorder

_MARK = "_recorded_by_hangwatch"


class CustomCalls:
    """Records the calls of such groups, each call once however classes call each other.

    c10d has no number for them, so their places are counted here.
    """

    def __init__(
        self, recorder: Recorder, groups: Groups, guard: Guard, prefixes: tuple[str, ...]
    ) -> None:
        self.guard = guard
        self._recorder = recorder
        self._groups = groups
        self._prefixes = prefixes
        self._inside: set[tuple[int, int]] = set()
        """(thread, id of the group) of the calls that are being made."""

    def begin(self, method: Method, group: Any, args: Any, kwargs: Any) -> int:
        """Record a call that is about to be made; -1 if it is part of another."""
        known = self._groups.find(group)
        key = threading.get_ident(), id(group)
        if known is None or known.slot < 0 or key in self._inside:
            return -1
        signature = read_signature(method, args, kwargs, known.ranks)
        place = known.counts[method.p2p] + 1
        known.counts[method.p2p] += max(1, method.places)
        index = self._recorder.record_begin(
            known.slot,
            public_name(sys._getframe(), self._prefixes) or method.wire,
            method.wire,
            place,
            method.p2p,
            *signature,
        )
        self._inside.add(key)
        return index

    def end(self, index: int, group: Any, *, failed: bool) -> None:
        """The call has returned or raised."""
        self._inside.discard((threading.get_ident(), id(group)))
        self._recorder.record_end(index, failed)


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
        if calls is None:
            return original(self, *args, **kwargs)
        index = -1
        with calls.guard:
            index = calls.begin(method, self, args, kwargs)
        if index < 0:
            return original(self, *args, **kwargs)
        failed = True
        try:
            result = original(self, *args, **kwargs)
            failed = False
            return result
        finally:
            with calls.guard:
                calls.end(index, self, failed=failed)

    setattr(wrapper, _MARK, True)
    return wrapper
