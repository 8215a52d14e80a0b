"""The kinds of faults, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinds import (
    asynchronous,
    freeze,
    kill,
    page,
    planted,
    recover,
    setup,
    signals,
    start,
    store,
    syscall,
)

if TYPE_CHECKING:
    from fault import Kind

KINDS: tuple[Kind, ...] = (
    asynchronous,
    setup,
    kill,
    syscall,
    store,
    recover,
    signals,
    planted,
    page,
    freeze,
    start,
)
