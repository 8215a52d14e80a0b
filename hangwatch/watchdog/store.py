"""A connection to the job's TCPStore, as a client that the job does not notice.

torch is imported here and nowhere else in the watchdog, when a connection is
first made: it costs 2 s and 200 MB. ``wait_for_workers=False`` keeps us out of
the count of workers that torchrun waits for. A request on a connection waits
for the one before it, so what may wait for long has a connection of its own.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from hangwatch.errors import HangwatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONNECT_S = 20.0
"""One in some 25 connections of a process takes torch 5 s (seen with 2.13)."""
TIMEOUT_S = 5.0
"""How long a key is waited for that should be there."""
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


class StoreLostError(HangwatchError):
    """The store cannot be reached, or not any more."""


class Store(Protocol):
    """What is used of torch.distributed.PrefixStore, which documents it."""

    def set(self, key: str, value: bytes | str) -> None: ...  # noqa: D102
    def get(self, key: str) -> bytes: ...  # noqa: D102
    def add(self, key: str, amount: int) -> int: ...  # noqa: D102
    def check(self, keys: list[str]) -> bool: ...  # noqa: D102
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...  # noqa: D102
    def multi_get(self, keys: list[str]) -> list[bytes]: ...  # noqa: D102
    def delete_key(self, key: str) -> bool: ...  # noqa: D102
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...  # noqa: D102


class Connect(Protocol):
    """Makes a connection; ``connect`` below is the real one."""

    def __call__(self, host: str, port: int, prefix: str) -> Store:
        """A new connection. Raises StoreLostError."""


def connect(host: str, port: int, prefix: str) -> Store:
    """A new connection. Blocks for up to CONNECT_S, and longer the first time.

    Raises StoreLostError where there is no store, or no torch.
    """
    try:
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            from torch.distributed import PrefixStore, TCPStore  # noqa: PLC0415
    except ImportError as error:
        raise StoreLostError(f"hangwatch's Python cannot import torch ({error})") from error
    try:
        tcp = TCPStore(
            host,
            port,
            is_master=False,
            timeout=timedelta(seconds=CONNECT_S),
            wait_for_workers=False,
        )
        tcp.set_timeout(timedelta(seconds=TIMEOUT_S))
        store: Store = PrefixStore(prefix, tcp)
    except (RuntimeError, ValueError) as error:
        raise StoreLostError(f"no store at {host}:{port} ({_first_line(error)})") from error
    return store


def waited(store: Store, keys: Sequence[str], timeout_s: float) -> bool:
    """Wait in the server until all keys are there; False if they are not in time.

    Raises StoreLostError.
    """
    try:
        store.wait(list(keys), timedelta(seconds=timeout_s))
    except RuntimeError as error:
        if type(error).__name__ == "DistStoreError":  # the timeout; a lost one: DistNetworkError
            return False
        raise StoreLostError(f"the store is gone ({_first_line(error)})") from error
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Load torch so that it does not log what happens to a store that ends with its job.

    The variable is read once, when the library is loaded, and is not for what
    we start.
    """
    before = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = "FATAL"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LOG_LEVEL]
        else:
            os.environ[_LOG_LEVEL] = before


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
