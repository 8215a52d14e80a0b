"""Reads the messages of exceptions: which library raised one, and for what."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto

from hangwatch.model.page import ExceptionRecord


class Library(Enum):
    """The libraries that end a process by SIGABRT."""

    GLOO = auto()
    """A gloo that is sent more than it expects."""
    NCCL = auto()
    """PyTorch's watchdog of NCCL: after an error of the GPU, or a time-out."""


_LOST_PEER = re.compile(
    r"gloo/transport/(?:\w+/)+(?!device|address)|ncclremoteerror|nccl communicator|recvvalue failed"
    r"|sendbytes failed|aborted comm|failed to pass monitoredbarrier",
    re.IGNORECASE,
)
"""The messages of gloo's transport/tcp/pair.cc, ProcessGroupNCCL and TCPStore for a lost peer only.
An address that gloo does not find, or a message of NCCL on CUDA, is the rank's own."""

_CONNECTION = re.compile(
    r"connection (?:was )?(?:reset|refused|aborted|lost)|connection.{0,20}by peer"
    r"|remote (?:process|peer|worker)"
    r"|broken pipe|socket (?:closed|timeout|error)|timed? ?out|timeout"
    r"|unhandled system error|network error|heartbeat|peer (?:closed|is gone)"
    r"|failed to recv|store(?:'s)? (?:socket|server)",
    re.IGNORECASE,
)
"""Messages for a lost peer, and for other things that a program talks to."""

_OF_TORCH = frozenset(
    {"RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}
)
"""The types that torch's own C++ raises."""

_THROWN_BY = {
    Library.GLOO: re.compile(r"^gloo::|gloo/transport/"),
    Library.NCCL: re.compile(r"^c10::DistBackendError|ProcessGroupNCCL|WorkNCCL"),
}
"""Exceptions that threads of the libraries do not catch: gloo's loop (transport/tcp/pair.cc), and
the watchdog of ProcessGroupNCCL."""
_OF_GPU = re.compile(r"(?:CUDA|HIP) error")
"""The same watchdog reports it; a peer does not cause it."""

_TIME_OUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)

_MEMORY = re.compile(
    r"OutOfMemory|MemoryError|out of memory|(?:can't|cannot|unable to) allocate", re.IGNORECASE
)
_MISTAKES = frozenset(
    {"AttributeError", "AssertionError", "ImportError", "IndexError", "KeyError"}
    | {"ModuleNotFoundError", "NameError", "TypeError", "UnboundLocalError", "ZeroDivisionError"}
)
"""The types that no handler raises to report another exception."""
_CUT_AT_LEAST = 40
"""A text that the agent has cut is no shorter."""


def is_of_lost_peer(texts: Iterable[str]) -> bool:
    """Return True if a text is one that the libraries raise for a lost peer only."""
    return any(map(_LOST_PEER.search, texts))


def may_be_of_connection(text: str) -> bool:
    """Return True if a text may be of a lost peer, or of another thing that a program talks to."""
    return _CONNECTION.search(text) is not None


def is_of_torch(error: ExceptionRecord) -> bool:
    """Return True if an exception has one of the types that torch's own C++ raises."""
    return error.type.rpartition(".")[2] in _OF_TORCH


def thrown_by(abort: ExceptionRecord) -> Library | None:
    """The library that threw an exception of C++ for what peers did; None for any other one."""
    text = f"{abort.type}: {abort.message}"
    if _OF_GPU.search(text):
        return None
    return next((library for library, known in _THROWN_BY.items() if known.search(text)), None)


def is_of_time_out(error: ExceptionRecord) -> bool:
    """Return True if a time-out is named, by an exception or by those that it was made of."""
    return any(map(_TIME_OUT.search, (error.message, *error.after)))


def is_of_memory(exception: ExceptionRecord) -> bool:
    """Return True if it is of memory itself, or made of one; a mistake in a handler is neither."""
    text = f"{exception.type}: {exception.message}"
    wrapped = exception.after[:1] if exception.type not in _MISTAKES else ()
    return any(map(_MEMORY.search, (text, *wrapped)))


def is_one_text(first: str, second: str) -> bool:
    """Return True if two texts are the same as far as they go: each may have been cut."""
    shorter, longer = sorted((first, second), key=len)
    return longer.startswith(shorter) if len(shorter) >= _CUT_AT_LEAST else longer == shorter
