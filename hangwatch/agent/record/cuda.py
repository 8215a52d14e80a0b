"""CUDA streams for the recorder, and captures of CUDA graphs that must be left alone.

While a thread captures in the global mode, which is torch's, no other thread may ask an
event whether it is done: the capture would be invalid (CUDA's documentation of
cudaStreamBeginCapture). The entries of NCCL's Flight Recorder cannot be read without
asking the events of all that is unfinished (update_state in FlightRecorderDetail.hpp). A
thread in the relaxed mode may ask.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hangwatch.agent.record.recorder import Recorder


def use_current_streams(recorder: Recorder, modules: Mapping[str, Any] = sys.modules) -> None:
    """Have beacons written, where torch was built for CUDA. Called for each page.

    Uses torch's own function, which the compiler of torch.compile calls as well
    (torch/_inductor): of all ways to the handle the only one with a stable name, 0.1 us a call.
    """
    current_stream = getattr(modules.get("torch._C"), "_cuda_getCurrentRawStream", None)
    if current_stream is not None:
        recorder.use_streams(current_stream)


LIBRARY = "libcuda.so.1"
RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""
_drivers: dict[str, ctypes.CDLL] = {}
"""Those that were found, by name: a driver stays loaded."""


@contextmanager
def left_alone(library: str = LIBRARY) -> Iterator[None]:
    """Have what this thread asks of the driver disturb no capture of another thread."""
    exchange = _exchange(library)
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(RELAXED)
    changed = exchange(ctypes.byref(mode)) == 0  # mode is now the one before
    try:
        yield
    finally:
        if changed:
            exchange(ctypes.byref(mode))


def _exchange(library: str) -> ctypes._NamedFuncPointer | None:
    """Return the driver's function; None where this process has not loaded the driver."""
    driver = _drivers.get(library)
    if driver is None:
        flags = os.RTLD_NOLOAD | os.RTLD_NOW
        try:
            _ctypes.dlopen(library, flags)  # ctypes leaves a cycle behind, also where it fails
        except OSError as error:
            if is_foreign(error):
                raise
            return None
        driver = _drivers[library] = ctypes.CDLL(library, mode=flags)
    return getattr(driver, "cuThreadExchangeStreamCaptureMode", None)
