"""Python's garbage collector, where it only costs time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep the collector off: for a large job it takes a third of the time.

    It would look again and again for cycles among millions of objects that have none.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
