"""Asks ranks for their Flight Recorder.

The watchdog makes ``<page>.req``; the sampler thread of the rank removes it and
answers with ``<page>.flight``, renamed into place when it is complete. A rank
whose GIL is held, that is stopped or gone, does not answer.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from hangwatch.errors import EvidenceError

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 2.0
MAX_BYTES = 64 << 20
_LOOK_S = 0.02


async def ask(page: Path, timeout_s: float = TIMEOUT_S) -> bytes:
    """The recorder of the rank with this page. Raises EvidenceError."""
    request = page.with_name(page.name + ".req")
    answer = page.with_name(page.name + ".flight")
    deadline = time.monotonic() + timeout_s
    try:
        answer.unlink(missing_ok=True)  # of an earlier request that nobody waited for
        request.touch(mode=0o600)
        while not answer.exists():
            if time.monotonic() > deadline:
                raise EvidenceError(f"its sampler did not answer within {timeout_s:g} s")
            await asyncio.sleep(_LOOK_S)
        return _take(answer)
    except OSError as error:
        raise EvidenceError(f"it cannot be asked: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            request.unlink(missing_ok=True)


def left_behind(page: Path) -> bytes:
    """What a rank that raised has left at its end. Raises EvidenceError."""
    answer = page.with_name(page.name + ".flight")
    try:
        with answer.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise EvidenceError("it ended and left none") from None
    except OSError as error:
        raise EvidenceError(f"it cannot be read: {error.strerror or error}") from error
    return _bounded(data)


def _take(answer: Path) -> bytes:
    """Read the answer and free its shared memory. Raises OSError, EvidenceError."""
    fd = os.open(answer, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    answer.unlink(missing_ok=True)
    return _bounded(data)


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise EvidenceError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return data
