"""Records in Python where the native module cannot be loaded: wraps torch's own methods.

A wrapper must bear the name of what it wraps also in its code object: where C++
looks for an override in Python, it recognises a call from that very override by the
name of the calling frame (pybind11, get_type_override), and would otherwise call
it again without end.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from hangwatch.agent.call_site import public_name
from hangwatch.agent.guard import Guard
from hangwatch.agent.record.hidden_wrappers import standing_for
from hangwatch.agent.record.python_page import PythonPage
from hangwatch.agent.record.signature import read_signature, read_splits
from hangwatch.model.operations import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangwatch.agent.record.python_page import Numbering
    from hangwatch.model.operations import Method

_MARK = "_recorded_by_hangwatch"


class PythonRecorder(PythonPage):
    """Records as hangwatch._native does; see its stub for each function."""

    def wrap_methods(
        self,
        process_group: type,
        work: type,
        resolve: Callable[[Any], int],
        is_foreign: Callable[[BaseException], bool] | None = None,  # noqa: ARG002 (guards know)
    ) -> list[str]:
        def disarm(reason: str) -> None:
            self.set_disarmed(reason)
            self.disarm()

        guard = Guard(self.count_swallowed, disarm)
        wrapped = [
            method.name
            for method in METHODS
            if _replace(
                process_group,
                method.name,
                functools.partial(_recording, self, guard, method, resolve),
            )
        ]
        if _replace(work, "wait", functools.partial(_waiting, self, guard)):
            wrapped.append("wait")
        return wrapped


def _replace(owner: type, name: str, wrap: Callable[[Any], Any]) -> bool:
    """Replace a method that the class itself has; return True if it has it."""
    if name not in owner.__dict__:
        return False
    original = getattr(owner, name)
    if not hasattr(original, _MARK):
        wrapper: Any = standing_for(original)(wrap(original))
        wrapper.__code__ = wrapper.__code__.replace(co_name=name)
        setattr(wrapper, _MARK, True)
        setattr(owner, name, wrapper)
    return True


def _recording(
    recorder: PythonPage,
    guard: Guard,
    method: Method,
    resolve: Callable[[Any], int],
    original: Any,
) -> Any:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        call: tuple[int, Numbering, int] | None = None
        if recorder.armed:
            try:
                with guard:
                    call = _begin(recorder, resolve(self), method, (self, *args), kwargs)
            except BaseException:  # not ours: the call is not made
                if call is not None:
                    index, numbering, _ = call
                    numbering.cancel(method)
                    recorder.record_cancelled(index)
                raise
        if call is None:
            return original(self, *args, **kwargs)
        result = None
        failed = True
        try:
            result = original(self, *args, **kwargs)
            failed = False
            return result
        finally:
            with guard:
                index, numbering, before = call
                numbering.end(method, self, before)
                if failed or result is None:
                    recorder.record_end(index, failed)
                else:
                    recorder.record_issued(index, result)
                if failed:
                    recorder.keep_thrown(sys.exc_info()[1])

    return wrapper


def _begin(
    recorder: PythonPage, slot: int, method: Method, call: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[int, Numbering, int] | None:
    """Record a call that is about to be made; return (event, numbering, c10d's number before).

    call: its arguments, the group first.
    """
    if slot < 0:
        return None
    group, *args = call
    signature = read_signature(method, args, kwargs, recorder.members(slot))
    op = public_name(sys._getframe(), recorder.prefixes) or method.wire
    numbering = recorder.numbering[slot]
    seq, before = numbering.begin(method, group)
    index = -1
    try:
        index = recorder.record_begin(slot, op, method.wire, seq, method.p2p, *signature)
        if method.sends is not None:
            recorder.set_splits(index, read_splits(method, args, kwargs))
    except BaseException:  # not ours, perhaps: then the call is not made
        numbering.cancel(method)
        recorder.record_cancelled(index)
        raise
    return index, numbering, before


def _waiting(recorder: PythonPage, guard: Guard, original: Any) -> Any:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        index = -1
        if recorder.armed:
            with guard:
                index = recorder.wait_begin(self)
        if index < 0:
            return original(self, *args, **kwargs)
        failed = True
        try:
            result = original(self, *args, **kwargs)
            failed = False
            return result
        finally:
            with guard:
                recorder.record_end(index, failed)
                if failed:
                    recorder.keep_thrown(sys.exc_info()[1])

    return wrapper
