"""Makes label values: short, legible, and bounded in number however long the job runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from hangwatch.console import cut, printable
from hangwatch.evidence.pages.arrivals import Members
from hangwatch.model.calls import GroupKey
from hangwatch.model.page import PageGroup, RankPage
from hangwatch.text import fold_ranks

MAX_CHARS = 64
"""Longest value of a label."""
MAX_DESC_CHARS = 48
MAX_MEMBERS_CHARS = 32
MAX_GROUPS = 512
"""Most labels that one watchdog ever gives to groups; groups beyond them are left out."""
_HASH_CHARS = 6

_Local = tuple[int, int, int, str]
"""(rank, pid, slot, name) of a group, which no other on the node has."""


def label(text: object) -> str:
    """Return the value of a label: one line, cut if it is long."""
    return cut(str(text), MAX_CHARS)


def command_label(command: Sequence[str]) -> str:
    """Return the program and the script that it runs: arguments may be private."""
    names = [word.rpartition("/")[2] for word in command]
    script = next((name for name in names[1:] if name.endswith(".py")), "")
    return label(f"{names[0]} {script}".strip()) if names else ""


def group_text(key: GroupKey, world_size: int) -> str:
    """Return the name of a group: its description, with its members if these are not all."""
    desc = _hashed(printable(key.desc), MAX_DESC_CHARS)
    if len(key.ranks) == world_size and set(key.ranks) == set(range(world_size)):
        return desc or "world"
    members = fold_ranks(key.ranks)
    if len(members) > MAX_MEMBERS_CHARS:
        some = members[:MAX_MEMBERS_CHARS].rpartition(", ")[0]
        members = f"{some}, ...; {len(key.ranks)} ranks, {_hash(members)}"
    return f"{desc} [{members}]".strip()


def _hashed(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - _HASH_CHARS - 4]}... {_hash(text)}"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:_HASH_CHARS]


class GroupLabels:
    """Gives each live group of this node a label, the same one for all its ranks.

    If two groups have one name, the later one gets a number (``#1``). The label of a
    group that was destroyed on all ranks is free for the next: a job that keeps making
    groups does not use up ever more labels.
    """

    def __init__(self) -> None:
        self._processes: list[tuple[int, int]] = []
        self._labels: dict[_Local, str] = {}
        self._given: set[str] = set()
        self._refused: set[_Local] = set()
        self.members: dict[str, Members] = {}
        """Label to the members of its group on this node."""

    @property
    def full(self) -> bool:
        """True if groups have been left out."""
        return bool(self._refused)

    def update(self, pages: Sequence[RankPage], world_size: int) -> None:
        """Label the groups of all ranks of this node, which have a page each."""
        living = {
            _local(page, group): group.key for page in pages for group in page.groups if group.alive
        }
        processes = sorted((page.identity.rank, page.identity.pid) for page in pages)
        known = self._labels.keys() | self._refused
        if living.keys() == known and processes == self._processes:
            return
        self._processes = processes
        self._refused &= living.keys()
        self._labels = {one: name for one, name in self._labels.items() if one in living}
        keys = {living[one]: name for one, name in self._labels.items()}
        for one in sorted(living.keys() - known, key=lambda one: living[one].index):
            key = living[one]
            name = keys.get(key) or self._free_label(key, world_size, set(keys.values()))
            if name:
                keys[key] = self._labels[one] = name
            else:
                self._refused.add(one)
        self.members = {name: _members(key, processes) for key, name in keys.items()}

    def of(self, page: RankPage, group: PageGroup) -> str:
        """Return the label of a group of a rank, empty if it has none."""
        return self._labels.get(_local(page, group), "")

    def _free_label(self, key: GroupKey, world_size: int, taken: set[str]) -> str:
        text = group_text(key, world_size)
        name, number = text, 0
        while name in taken:
            number += 1
            name = f"{text} #{number}"
        if name not in self._given and len(self._given) >= MAX_GROUPS:
            return ""
        self._given.add(name)
        return name


def _local(page: RankPage, group: PageGroup) -> _Local:
    return page.identity.rank, page.identity.pid, group.slot, group.name


def _members(key: GroupKey, processes: Iterable[tuple[int, int]]) -> Members:
    ranks = set(key.ranks)
    return Members(key.index, tuple(one for one in processes if one[0] in ranks))
