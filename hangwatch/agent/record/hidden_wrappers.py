"""Wraps functions and methods of torch so that neither warnings nor inspection see it.

A library warns of its caller: `warnings.warn(..., stacklevel=2)`. A wrapper of ours between
the two would be that caller, so that the warning names our file, and the user's filters do
not match it. `warnings` does not count frames of files whose names show that they belong to
the import system (`is_internal_frame` in CPython's Python/_warnings.c, 3.3 to the newest).

Programs pass on only what a function takes, by ``inspect.getfullargspec``, which asks no
``__wrapped__``: a wrapper has the signature itself.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys

from hangwatch.agent.torch_api import keep_compiler_off
from hangwatch.safety.foreign import Ignoring

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])
    from types import CodeType

_FILE = os.path.join(os.path.dirname(__file__), "importlib._bootstrap")


def uncounted(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``wrapper``, whose frames now do not count in a ``stacklevel``."""
    wrapper.__code__ = wrapper.__code__.replace(co_filename=_FILE)
    return wrapper


def standing_for(original: Callable[..., Any]) -> Callable[[F], F]:
    """Have a wrapper look like ``original``: by its name, its help, and what it takes."""

    def dressed(wrapper: F) -> F:
        functools.update_wrapper(wrapper, original)
        if not hasattr(original, "__wrapped__"):  # else it shows its own wrapper's, as ours does
            with Ignoring(ValueError, TypeError):  # of a function of C's it may not be known
                wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return wrapper

    return dressed


_MARK = "_observed_by_hangwatch"
_COMPILER = "torch._C._dynamo.eval_frame"


def leave_alone(code: CodeType, *, deep: bool) -> None:
    """Have torch.compile pass by code of ours; deep: and what it calls. Raises AttributeError."""
    keep_compiler_off(sys.modules[_COMPILER], code, deep=deep)


def follow(owner: type, name: str, report: Callable[[Any, Any], None]) -> None:
    """Call report(instance, result), which must not raise, after a method of a class; once."""
    original: Any = vars(owner)[name]
    if hasattr(original, _MARK):
        return

    @standing_for(original)
    @uncounted
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        report(self, result)
        return result

    leave_alone(wrapper.__code__, deep=False)
    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)
