"""What stands in the place of torch's classes, and does next to nothing."""

from __future__ import annotations

from typing import Any


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
