"""The parts of a call that all sources know: its line, its package, its process group."""

from __future__ import annotations

from dataclasses import dataclass, field

OF_A_STORE = "store."
"""Prefix of the names of calls that wait for a key of torch's store."""


@dataclass(frozen=True, slots=True)
class PackageCall:
    """A call from a line of the user's code into an installed package other than torch.

    ``function`` is the package's outermost function on the stack, with its class: the line
    itself calls it, as far as a stack shows. ``inner`` is the innermost public method,
    of any package, empty where that is the same or there is none.
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
    """The call into a package that the line has made, where a stack shows it."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The identity of a process group, which is the same on every rank.

    A group's name is a counter of the process and differs between ranks;
    members, description and ``index`` (its place among the groups with the
    same members and description, from 0, over the life of the process) do not, but for
    processes that were started later (diagnosis/facts/namesakes.py).
    """

    ranks: tuple[int, ...]
    desc: str = ""
    index: int = 0
