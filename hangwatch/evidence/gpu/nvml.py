"""NVML through pynvml, which is loaded when it is first needed.

https://docs.nvidia.com/deploy/nvml-api/ describes the functions and their errors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from hangwatch.errors import EvidenceError
from hangwatch.model.kinds import GpuHealth

T = TypeVar("T")

NO_DRIVER = "no NVIDIA driver is installed here"
LIBRARY = "libnvidia-ml.so.1"
"""Comes with the driver; pynvml opens it by this name."""
_NOT_AVAILABLE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""NVML_VALUE_NOT_AVAILABLE as unsigned numbers."""
_ODD = (ValueError, TypeError, LookupError, AttributeError)
"""What pynvml raises of answers that make no sense, and of what it does not know."""
_MISMATCH = (
    "the driver in the kernel is of another version than its libraries: reboot, or load the "
    "module anew"
)


class UnusableError(Exception):
    """A GPU that NVML cannot read any more."""

    def __init__(self, health: GpuHealth) -> None:
        super().__init__(health.value)
        self.health = health


class Nvml:
    """NVML, initialized. Calls of ``lib`` (the module pynvml) may block as long as they like."""

    def __init__(self) -> None:
        """Load and initialize NVML. Raises EvidenceError where it cannot be used."""
        try:
            # Without a driver pynvml, which is large, need not be loaded to know that.
            ctypes.CDLL(LIBRARY)
        except OSError as error:
            missing = "no such file" in str(error).lower()
            why = NO_DRIVER if missing else f"{LIBRARY} cannot be loaded: {error}"
            raise EvidenceError(why) from None
        try:
            import pynvml  # noqa: PLC0415 (see above)
        except ImportError as error:
            raise EvidenceError(f"{error}: pip install nvidia-ml-py") from None
        self.lib: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise EvidenceError(self._why(error)) from None

    def version(self) -> str:
        """Of the driver, empty if it cannot be had."""
        return self.quietly(self.lib.nvmlSystemGetDriverVersion) or ""

    def count(self) -> int:
        """How many GPUs there are. Raises EvidenceError."""
        try:
            return int(self.lib.nvmlDeviceGetCount())
        except self.lib.NVMLError as error:
            raise EvidenceError(self._why(error)) from None

    def quietly(self, call: Callable[[], T]) -> T | None:
        """The result, None where it cannot be had."""
        try:
            return call()
        except (self.lib.NVMLError, *_ODD):
            return None

    def lacks(self, error: Exception) -> bool:
        """Whether it means that this GPU, driver or pynvml does not offer such a thing."""
        return isinstance(error, AttributeError) or getattr(error, "value", None) in (
            self.lib.NVML_ERROR_NOT_SUPPORTED,
            self.lib.NVML_ERROR_FUNCTION_NOT_FOUND,
        )

    def check(self, error: Exception) -> None:
        """Raise UnusableError if the error means that the GPU cannot be used any more."""
        found = {
            self.lib.NVML_ERROR_GPU_IS_LOST: GpuHealth.LOST,
            self.lib.NVML_ERROR_RESET_REQUIRED: GpuHealth.RESET_REQUIRED,
        }.get(getattr(error, "value", None))
        if found is not None:
            raise UnusableError(found) from error

    def _why(self, error: Exception) -> str:
        value = getattr(error, "value", None)
        if value == self.lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return _MISMATCH
        if value == self.lib.NVML_ERROR_FUNCTION_NOT_FOUND:
            return f"the driver's {LIBRARY} is too old"
        return f"NVML: {error}"


class Asker:
    """Asks NVML for the figures of one GPU and keeps the names of those that failed."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.failed: dict[str, None] = {}

    def __call__(self, name: str, *calls: Callable[[], T]) -> T | None:
        """What the first of the calls that is offered gives; None where it fails.

        Raises UnusableError.
        """
        for call in calls:
            try:
                return call()
            except (self.nvml.lib.NVMLError, *_ODD) as error:
                self.nvml.check(error)
                if not self.nvml.lacks(error):
                    self.failed[name] = None
                    return None
        return None


def known(value: int, most: float = float("inf")) -> int:
    """The number that NVML gave. Raises ValueError for one that means that there is none."""
    if value in _NOT_AVAILABLE or not 0 <= value <= most:
        raise ValueError(f"{value} is no figure")
    return value
