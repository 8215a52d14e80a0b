"""Keeps warnings at the line of the user's that they are about.

A library warns of its caller: `warnings.warn(..., stacklevel=2)`. A wrapper of ours between
the two would be that caller, so that the warning names our file, and the user's filters do
not match it. `warnings` does not count frames of files whose names tell that they belong to
the import system (`is_internal_frame` in CPython's Python/_warnings.c, 3.3 to the newest).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FILE = os.path.join(os.path.dirname(__file__), "importlib._bootstrap")


def uncounted(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose frames do not count in a ``stacklevel`` any more."""
    wrapper.__code__ = wrapper.__code__.replace(co_filename=_FILE)
    return wrapper
