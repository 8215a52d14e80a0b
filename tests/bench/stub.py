"""What stands in the place of torch's classes, and does next to nothing."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


class Tensor:
    """A stub of a tensor on the CPU, which has attributes and no DLPack."""

    dtype = "torch.float32"
    shape = (4,)
    is_cpu = True
    __torch_function__: Any = None


class OnDevice(Tensor):
    """The same on a device; where that is negative, on the CPU."""

    def __init__(self, device: int = 0) -> None:
        self._device = device
        self.is_cpu = device < 0
        self.is_cuda = device >= 0

    def get_device(self) -> int:
        """The device's number."""
        return self._device


def torch() -> Any:
    """As much of torch as tells what a tensor is."""
    module: Any = ModuleType("torch")
    module.Tensor = Tensor
    module._C = SimpleNamespace(_disabled_torch_function_impl=None)  # noqa: SLF001 (as torch has it)
    return module


class Work:
    """A stub of torch's Work."""

    def wait(self) -> bool:
        """Return at once."""
        return True


class Group:
    """A stub of torch's ProcessGroup, whose number costs next to nothing."""

    def __init__(self) -> None:
        self.number = 0
        self.work = Work()

    def allreduce(self, tensors: list[Any]) -> Work:  # noqa: ARG002 (as torch has it)
        """Count, and do nothing."""
        self.number += 1
        return self.work

    def _get_sequence_number_for_group(self) -> int:
        return self.number
