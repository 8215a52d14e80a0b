"""A call as all sources know it: its line, its package, its process group."""

from __future__ import annotations

from dataclasses import dataclass, field

OF_A_STORE = "store."
"""The names of calls that wait for a key of torch's store begin so."""


@dataclass(frozen=True, slots=True)
class PackageCall:
    """What a line of the user's code has called of an installed package other than torch.

    ``function`` is the outermost such function on the stack, with its class: what the
    line itself calls, as far as a stack tells. ``inner`` is the innermost public method,
    of whatever package, empty where that is the same or there is none.
    """

    package: str
    function: str
    inner: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """A line of code. ``source`` is the stripped line where it could be read."""

    file: str
    line: int
    function: str
    source: str | None = None
    call: PackageCall | None = field(default=None, compare=False)
    """What the line has called, where a stack shows it."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What a process group is known by on every rank.

    A group's name is a counter of the process and differs between ranks;
    members, description and ``index`` (its place among the groups with the
    same members and description, from 0, over the life of the process) do not, but for
    processes that were started later (diagnosis/facts/namesakes.py).
    """

    ranks: tuple[int, ...]
    desc: str = ""
    index: int = 0
