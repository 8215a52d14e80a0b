"""Label values: short, legible, and boundedly many however long the job runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from hangwatch.console import printable
from hangwatch.evidence.pages.arrivals import Members
from hangwatch.model.calls import GroupKey
from hangwatch.model.page import PageGroup, RankPage
from hangwatch.text import fold_ranks

MAX_CHARS = 64
MAX_DESC_CHARS = 48
MAX_MEMBERS_CHARS = 32
MAX_GROUPS = 512
"""Labels of groups that one watchdog ever gives out; groups beyond them are left out."""
_HASH_CHARS = 6

_Local = tuple[int, int, int, str]
"""(rank, pid, slot, name): what tells a group from all others on the node."""


def cut(text: str, limit: int = MAX_CHARS) -> str:
    """The text on one line of printable characters, cut at a limit."""
    shown = printable(text)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def rank_label(ranks: Iterable[int]) -> str:
    """``0, 3-7``, cut where that gets long."""
    return cut(fold_ranks(ranks))


def command_label(command: Sequence[str]) -> str:
    """The program and the script that it runs: arguments may hold what is nobody's business."""
    names = [word.rpartition("/")[2] for word in command]
    script = next((name for name in names[1:] if name.endswith(".py")), "")
    return cut(f"{names[0]} {script}".strip()) if names else ""


def group_text(key: GroupKey, world_size: int) -> str:
    """What a group is called: its description, with its members where these are not all."""
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
    """Gives each group that lives on this node a label, the same one for all its ranks.

    Of groups that look alike the later one gets a number (``#1``). The label of a
    group that was destroyed on all ranks is free for the next: a job that makes
    groups again and again does not have ever more of them.
    """

    def __init__(self) -> None:
        self._processes: list[tuple[int, int]] = []
        self._labels: dict[_Local, str] = {}
        self._given: set[str] = set()
        self._refused: set[_Local] = set()
        self.members: dict[str, Members] = {}
        """Each label with the members of its group that this node has."""

    @property
    def full(self) -> bool:
        """Whether groups have been left out."""
        return bool(self._refused)

    def update(self, pages: Sequence[RankPage], world_size: int) -> None:
        """Take note of the groups of all ranks of this node, one page for each rank."""
        living = {
            _local(page, group): group.key for page in pages for group in page.groups if group.alive
        }
        processes = sorted((page.identity.rank, page.identity.pid) for page in pages)
        known = self._labels.keys() | self._refused
        if living.keys() == known and processes == self._processes:
            return
        self._processes = processes
        self._refused &= living.keys()
        self._labels = {one: label for one, label in self._labels.items() if one in living}
        keys = {living[one]: label for one, label in self._labels.items()}
        for one in sorted(living.keys() - known, key=lambda one: living[one].index):
            key = living[one]
            label = keys.get(key) or self._free_label(key, world_size, set(keys.values()))
            if label:
                keys[key] = self._labels[one] = label
            else:
                self._refused.add(one)
        self.members = {label: _members(key, processes) for key, label in keys.items()}

    def of(self, page: RankPage, group: PageGroup) -> str:
        """The label of a group of a rank, empty for one that has none."""
        return self._labels.get(_local(page, group), "")

    def _free_label(self, key: GroupKey, world_size: int, taken: set[str]) -> str:
        text = group_text(key, world_size)
        label, number = text, 0
        while label in taken:
            number += 1
            label = f"{text} #{number}"
        if label not in self._given and len(self._given) >= MAX_GROUPS:
            return ""
        self._given.add(label)
        return label


def _local(page: RankPage, group: PageGroup) -> _Local:
    return page.identity.rank, page.identity.pid, group.slot, group.name


def _members(key: GroupKey, processes: Iterable[tuple[int, int]]) -> Members:
    ranks = set(key.ranks)
    return Members(key.index, tuple(one for one in processes if one[0] in ranks))
