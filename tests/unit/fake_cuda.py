"""Builds the fake driver (native/tests/fake_cuda.cpp), and tells it what to do."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "native" / "tests" / "fake_cuda.cpp"
DEFAULT_STREAM = 0


def build(directory: Path, *options: str) -> Path:
    """Compile the fake into a directory; returns the library."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        if os.environ.get("CI"):
            pytest.fail("there is no C++ compiler, and CI needs one")
        pytest.skip("there is no C++ compiler")
    library = directory / "libcuda.so.1"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", *options]
    flags.append(f"-Wl,-soname,{library.name}")
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=True)  # noqa: S603
    return library


class FakeCuda:
    """A machine with two devices, whose streams run when they are told to.

    The process has a context on device 0, which is current.
    """

    def __init__(self, library: Path) -> None:
        self.library = library
        self._fake = ctypes.CDLL(str(library))
        self._fake.fake_stream.restype = ctypes.c_void_p
        self._fake.fake_writes.restype = ctypes.c_longlong
        self._fake.fake_reset()
        self._fake.fake_context(0, 1)
        self._fake.fake_set_device(0)
        self.current: dict[int, int] = {}
        """Device to the handle of its current stream, where it is not the default one."""

    def current_stream(self, device: int) -> int:
        """Stands for torch._C._cuda_getCurrentRawStream."""
        return self.current.get(device, DEFAULT_STREAM)

    def stream(self, device: int = 0) -> int:
        """A new stream of a device."""
        return int(self._fake.fake_stream(device))

    def context(self, device: int, *, active: bool) -> None:
        """Whether the process has a context on a device."""
        self._fake.fake_context(device, int(active))

    def capture(self, stream: int, *, on: bool) -> None:
        """Whether a stream is captured into a graph."""
        self._fake.fake_capturing(ctypes.c_void_p(stream), int(on))

    @property
    def capture_mode(self) -> int:
        """How careful this thread is of captures: 0 is CU_STREAM_CAPTURE_MODE_GLOBAL."""
        return int(self._fake.fake_capture_mode())

    def fail(self, function: str, error: int) -> None:
        """Let a function of the driver fail from now on."""
        self._fake.fake_fail(function.encode(), error)

    def attribute(self, device: int, attribute: int, value: int) -> None:
        """What a device says of itself."""
        self._fake.fake_attribute(device, attribute, value)

    def run(self, stream: int = DEFAULT_STREAM, count: int = -1) -> int:
        """Let a stream do so many of its writes, all for -1; returns how many it did."""
        return int(self._fake.fake_run(ctypes.c_void_p(stream), count))

    def pending(self, stream: int = DEFAULT_STREAM) -> int:
        """How many writes a stream has not done."""
        return int(self._fake.fake_pending(ctypes.c_void_p(stream)))

    def block(self) -> None:
        """Let whoever enqueues a write wait, as for a stream whose queue is full."""
        self._fake.fake_block(1)

    def unblock(self) -> None:
        """Let them go on."""
        self._fake.fake_block(0)

    def wait_until_blocked(self) -> None:
        """Return when somebody waits; without the GIL until then."""
        self._fake.fake_wait_until_blocked()

    @property
    def writes(self) -> int:
        """How many writes were enqueued, in all streams."""
        return int(self._fake.fake_writes())
