"""Asks ranks for their Flight Recorder.

The watchdog makes ``<page>.req`` and rings the rank's bell; the sampler thread of the
rank removes it and answers with ``<page>.flight``, renamed into place when it is
complete. While its GIL is held another thread answers, where torch lets it
(native/dump.hpp). A rank that is stopped or gone does not answer.

When a rank dies the others have a moment before they fail because of it or are ended: they
are asked at once, and their answers stay in place for later requests. So do answers that were
read already, until the incident is over: the rank may be ended before it is asked again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hangwatch.errors import EvidenceError
from hangwatch.evidence import timing
from hangwatch.model import native
from hangwatch.model.page import RankPage
from hangwatch.model.snapshot import ProcessState
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner

MAX_BYTES = 64 << 20


async def recorder_of(
    page: Path, light: RankPage, state: Callable[[], ProcessState], now_ns: int
) -> bytes:
    """Return the recorder of a rank, which is asked if it lives. Raises EvidenceError.

    light: its page. state: returns the state of its process, now.
    """
    process = state()
    if process.alive:
        beats_ns = light.gil_ns, light.heartbeat_ns
        if all(now_ns - beat_ns > timing.SAMPLER_SILENT_S * 1e9 for beat_ns in beats_ns):
            raise EvidenceError("its sampler does not get the GIL")
        try:
            return await ask(page)
        except EvidenceError:
            process = state()
            if process.alive:
                raise
    return left_behind(page, process.gone_age_s or 0.0)


async def ask(page: Path) -> bytes:
    """Return the recorder of the rank with this page. Raises EvidenceError."""
    request = page.with_name(page.name + ".req")
    answer = page.with_name(page.name + ".flight")
    deadline = time.monotonic() + timing.FLIGHT_ANSWER_S
    try:
        before = _identity(answer)  # of an earlier request
        request.touch(mode=0o600)
        ring(page)
        while _identity(answer) in (None, before):
            if time.monotonic() > deadline:
                within = f"within {timing.FLIGHT_ANSWER_S:g} s"
                raise EvidenceError(f"its sampler did not answer {within}")
            await asyncio.sleep(timing.FLIGHT_POLL_S)
        return _read(answer)[0]
    except OSError as error:
        raise EvidenceError(f"it cannot be asked: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            request.unlink(missing_ok=True)


def ask_in_passing(page: Path) -> None:
    """Have the rank leave its recorder next to its page, for left_behind()."""
    with suppress(OSError):
        page.with_name(page.name + ".req").touch(mode=0o600)
        ring(page)


def forget(page: Path) -> None:
    """Free the shared memory of a rank's answer."""
    with suppress(OSError):
        page.with_name(page.name + ".flight").unlink(missing_ok=True)


def ring(page: Path) -> None:
    """Wake the sampler; that of the Python recorder looks for requests by itself."""
    try:
        module = native.load()
    except ImportError:
        return
    with suppress(OSError):
        module.ring_at(str(page))


def left_behind(page: Path, gone_age_s: float) -> bytes:
    """Return the recorder of a rank that raised, or was asked shortly before its end.

    gone_age_s: seconds since it ended. Raises EvidenceError.
    """
    answer = page.with_name(page.name + ".flight")
    try:
        data, made = _read(answer)
    except FileNotFoundError:
        raise EvidenceError("it ended without leaving one") from None
    except OSError as error:
        raise EvidenceError(f"it cannot be read: {error.strerror or error}") from error
    if time.time() - made > gone_age_s + timing.FLIGHT_FRESH_S:
        raise EvidenceError("it left one that was made long before its end")
    return data


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from an earlier one of its name; None without a file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _read(answer: Path) -> tuple[bytes, float]:
    """Return the answer, and when it was made, Unix time in s. Raises OSError, EvidenceError."""
    with os.fdopen(untrusted.open_file(answer, Owner.DIRECTORY), "rb") as file:
        data, made = file.read(MAX_BYTES + 1), os.fstat(file.fileno()).st_mtime
    if len(data) > MAX_BYTES:
        raise EvidenceError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return data, made
