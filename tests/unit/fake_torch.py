"""What stands in the place of torch's classes, and lets a test act in the midst of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def raising(error: BaseException) -> Callable[..., Any]:
    """What raises it when it is called."""

    def fail(*_: object) -> None:
        raise error

    return fail


class Work:
    """A Work that is complete when ``during`` is."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.during = during

    def wait(self, timeout: float = 0) -> bool:
        self.during()
        return timeout >= 0

    def synchronize(self) -> None:
        self.during()


class Options:
    """Of a collective that has a root."""

    rootRank = 1  # noqa: N815 (as torch has it)


class Group:
    """A ProcessGroup that counts as gloo does, or has no number where that is negative."""

    def __init__(self, desc: str = "undefined", size: int = 2, number: int = 0) -> None:
        self.group_desc = desc
        self.number = number
        self.calls: list[tuple[Any, ...]] = []
        self.result: Any = None
        self.during: Callable[[], object] = lambda: None
        self.asked: Callable[[], object] = lambda: None
        """Called where the number is asked for."""
        self._size = size

    def size(self) -> int:
        return self._size

    def _get_sequence_number_for_group(self) -> int:
        self.asked()
        if self.number < 0:
            raise RuntimeError("not supported")
        return self.number

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((*args, kwargs))
        self.during()
        self.number += self.number >= 0
        return self.result

    def allreduce(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce."""
        return self._call("allreduce", *args, **kwargs)

    def barrier(self) -> Any:
        return self._call("barrier")

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._call("broadcast", tensors, opts)

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("gather", *args, **kwargs)

    def send(self, tensors: Any, dstRank: int, tag: int) -> Any:  # noqa: N803 (as torch has it)
        return self._call("send", tensors, dstRank, tag)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return self._call("recv_anysource", tensors, tag)

    def monitored_barrier(self, advance: int = 2) -> None:
        self.calls.append(("monitored_barrier", advance))
        self.during()
        self.number += advance * (self.number >= 0)

    def _start_coalescing(self, device: Any) -> None:
        if device is None:
            raise RuntimeError("this backend has no coalescing")

    def _end_coalescing(self, device: Any) -> Any:
        self.number += device
        return self.result
