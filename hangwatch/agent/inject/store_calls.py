"""Follows what the program does with torch's stores: the key it waits for, and those it sets."""

from __future__ import annotations

import sys
import threading
from itertools import product
from typing import TYPE_CHECKING, Any

from hangwatch.agent.inject.setup_calls import SetupCall
from hangwatch.agent.record.wrapping import standing_for, uncounted

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.inject.process import Process

_STORES = ("TCPStore", "FileStore", "HashStore", "PrefixStore")
_WAITING = ("get", "multi_get", "wait", "queue_pop")
"""Methods of torch.distributed.Store that return once others have set a key."""
_SETTING = ("set", "multi_set", "add", "append", "compare_set", "queue_push")
_MARK = "_followed_by_hangwatch"


def follow_stores(c10d: Any, process: Callable[[], Process | None]) -> None:
    """Wrap the methods of torch's own stores, once, for the main thread of a rank.

    Not of Store, their base: C++ takes a function of Python's there for one by which a store
    that is written in Python overrides its own, and would call it for ever.

    c10d is the module torch._C._distributed_c10d; process() returns the agent of this process,
    None in a fork's child.
    """
    stores = [store for name in _STORES if (store := getattr(c10d, name, None)) is not None]
    for store, (names, around) in product(stores, ((_WAITING, _wait), (_SETTING, _set))):
        for name in names:
            original = getattr(store, name, None)  # an older torch has not all of them
            if original is not None and not hasattr(original, _MARK):
                setattr(store, name, _wrapper(name, original, around, process))


def _wrapper(
    name: str,
    original: Callable[..., Any],
    around: Callable[..., Any],
    of_this: Callable[[], Process | None],
) -> Callable[..., Any]:
    @standing_for(original)
    @uncounted
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        process = of_this()
        if (
            process is None
            or not process.active
            or not process.marks.guard.open
            or threading.current_thread() is not threading.main_thread()
            or process.calls.current()  # torch itself, in a call that is shown
        ):
            return original(self, *args, **kwargs)
        return around(process, name, original, self, *args, **kwargs)

    setattr(wrapper, _MARK, True)
    return wrapper


@uncounted
def _wait(
    process: Process, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Make a call that may block, and show it meanwhile."""
    call = SetupCall(f"store.{name}")
    try:
        with process.marks.guard:
            frame = sys._getframe()
            process.marks.awaits(_keys(args, kwargs), frame)
            process.calls.begin(call)
            process.calls.show(call, frame, None)
        return original(*args, **kwargs)
    finally:
        with process.marks.guard:
            process.calls.leave(call)


@uncounted
def _set(
    process: Process, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    result = original(*args, **kwargs)
    with process.marks.guard:
        if name != "add" or args[2:] != (0,):  # to add nothing is to ask
            process.marks.sets(_keys(args, kwargs), sys._getframe())
    return result


def _keys(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the keys of a call, whose first argument is the store."""
    asked = args[1] if len(args) > 1 else kwargs.get("key", kwargs.get("keys", ()))
    several = [asked] if isinstance(asked, str) else asked
    return [key for key in several if isinstance(key, str)] if isinstance(several, list) else []
