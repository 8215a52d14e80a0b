"""The set-up calls of torch that are being made, and the groups that they ask for."""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any

from hangwatch.agent.call_site import NO_SITE, user_site
from hangwatch.agent.guard import Ticket
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from hangwatch.agent.call_site import Prefixes
    from hangwatch.agent.record.recorder import Recorder


def new_group(
    c10d: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, Sequence[int]] | None:
    """Return (number, ranks) of the group that a call of torch's function makes (see PageNewGroup).

    None where there is no job yet, or no valid call. Of ranks only a plain list is read: an
    iterator could be read only once.
    """
    world = c10d._world
    if world.default_pg is None:
        return None
    try:
        asked = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        if is_foreign(error):
            raise
        return None  # torch says what is wrong with it
    ranks = asked.get("ranks")
    if ranks is None:
        ranks = range(world.default_pg.size())
    plain = isinstance(ranks, list | tuple | range) and all(type(rank) is int for rank in ranks)
    by_members = asked.get("use_local_synchronization")
    number = -1 if by_members else getattr(world, "group_count", -1)
    return number, sorted(ranks) if plain else ()


class SetupCall(Ticket):
    """A call of a set-up function of torch's: kept by a local variable of its wrapper.

    What remembers it refers to it weakly, so that it is over at the latest when an
    exception has taken the wrapper's frame away, wherever in it that struck.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.destroying = False
        """True while torch's own function destroys groups."""
        self.leaving: str | None = None
        """The name of the group that it destroys, None for all of them."""


class SetupCalls:
    """The set-up calls that are being made, of which the page shows the outermost one."""

    def __init__(self, recorder: Recorder, prefixes: Prefixes) -> None:
        self._recorder = recorder
        self._prefixes = prefixes
        self._calls: dict[int, weakref.ref[SetupCall]] = {}
        """By id()."""
        self._shown: tuple[str, str, int, str] | None = None
        """The call that the page shows: name, file, line and function."""

    def current(self) -> list[SetupCall]:
        """Return the calls that are being made."""
        calls = [reference() for reference in list(self._calls.values())]
        return [call for call in calls if call is not None and not call.over]

    def begin(self, call: SetupCall) -> bool:
        """Take in a call that may block; return True if it is in no other one."""
        outermost = not self.current()
        self._calls[id(call)] = weakref.ref(call)
        return outermost

    def show(
        self, call: SetupCall, frame: FrameType | None, new: tuple[int, Sequence[int]] | None
    ) -> None:
        """Show the call, which is in no other one; new: see new_group()."""
        file, line, function = user_site(frame, self._prefixes)
        if new is not None:
            self._recorder.add_new_group(*new, file, line, function)
        self._shown = (call.name, file, line, function)
        self._recorder.set_in_call(*self._shown)

    def leave(self, call: SetupCall) -> None:
        """End the call, which has returned or raised."""
        call.over = True
        self._calls.pop(id(call), None)
        if not self.current():
            self._recorder.set_in_call("", *NO_SITE)
            self._shown = None

    def settle(self) -> None:
        """Withdraw a call whose wrapper an exception has ended before leave()."""
        shown = self._shown
        if shown is not None and not self.current():
            self._recorder.set_in_call("", *NO_SITE)
            self._shown = None
            if self.current():  # begun just now, by another thread
                self._recorder.set_in_call(*shown)
                self._shown = shown
