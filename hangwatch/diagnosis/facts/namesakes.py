"""Distinguishes process groups that have one key and never were one group.

A group's place among its like is counted in each process, so a process that was not there
for some of them counts others: a trainer that opens a world with a fresh helper for each
epoch is in its third group of the two where the helper is in its first, and so are ranks
that sat out while another was in their place. A group is made by all its members together,
so the times at which each made its groups show which of them are one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hangwatch.diagnosis import timing
from hangwatch.model.calls import GroupKey
from hangwatch.model.snapshot import GroupProgress, RankSnapshot


class _Families:
    """Numbers families of groups: the groups that share members and description.

    A key may name all ranks of a large job, and many ranks share one: it is hashed once.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[int, ...], str], int] = {}
        self._by_id: dict[int, int] = {}

    def number(self, key: GroupKey) -> int:
        found = self._by_id.get(id(key))
        if found is None:
            found = self._numbers.setdefault((key.ranks, key.desc), len(self._numbers))
            self._by_id[id(key)] = found
        return found

    def of(self, rank: RankSnapshot) -> dict[int, list[GroupProgress]]:
        """The groups of a rank by family, in the order in which it made them."""
        found: defaultdict[int, list[GroupProgress]] = defaultdict(list)
        for group in sorted(rank.groups, key=lambda group: group.key.index):
            found[self.number(group.key)].append(group)
        return found


def distinguish(
    ranks: dict[int, RankSnapshot],
) -> tuple[dict[int, RankSnapshot], frozenset[GroupKey]]:
    """The ranks, with places for their groups that are the same on all.

    With them the groups for which that is a guess: clocks alone show which of them are one,
    and nothing is proved by those.
    """
    if not any(group.key.index or not group.alive for r in ranks.values() for group in r.groups):
        return ranks, frozenset()  # each has only ever made one of a kind
    families = _Families()
    fullest = _fullest(ranks.values(), families)
    guessed: set[int] = set()
    placed = {number: _placed(rank, fullest, families, guessed) for number, rank in ranks.items()}
    if not guessed:
        return placed, frozenset()
    groups = (group for rank in placed.values() for group in rank.groups)
    return placed, frozenset(g.key for g in groups if families.number(g.key) in guessed)


def _fullest(
    ranks: Iterable[RankSnapshot], families: _Families
) -> dict[int, tuple[RankSnapshot, int]]:
    """By family, the rank that made the most groups of it, the oldest such rank, and the number."""
    found: dict[int, tuple[RankSnapshot, int]] = {}
    for rank in ranks:
        for group in rank.groups:
            family = families.number(group.key)
            known = found.get(family)
            order = group.key.index, rank.born_age_s or 0.0
            if known is None or order > (known[1], known[0].born_age_s or 0.0):
                found[family] = rank, group.key.index
    return found


def _placed(
    rank: RankSnapshot,
    fullest: dict[int, tuple[RankSnapshot, int]],
    families: _Families,
    guessed: set[int],
) -> RankSnapshot:
    moved: dict[int, dict[int, int]] = {}
    for family, own in families.of(rank).items():
        other, most = fullest[family]
        if other is rank:
            continue
        theirs = families.of(other)[family]
        one_clock = rank.node == other.node
        slack_s = timing.SAME_NODE_S if one_clock else timing.OTHER_NODE_S
        late = _came_after(rank, theirs, slack_s)
        places: dict[int, int] = {}
        guess = False
        if own[-1].key.index < most:
            places, guess = _by_time(own, theirs, 0.0 if one_clock else slack_s, late=late)
        elif _follows(rank, own, theirs, slack_s):
            places = {group.key.index: group.key.index + most + 1 for group in own}
        if guess or late or _came_after(other, own, slack_s):
            guessed.add(family)
        if any(place != index for index, place in places.items()):
            moved[family] = places
    return _with_places(rank, moved, families) if moved else rank


def _came_after(rank: RankSnapshot, theirs: Sequence[GroupProgress], slack_s: float) -> bool:
    """Return True if a rank was started when others had made groups that it cannot be in."""
    born_s, made_s = rank.born_age_s, theirs[0].made_age_s
    return born_s is not None and made_s is not None and made_s > born_s + slack_s


def _follows(
    rank: RankSnapshot,
    own: Sequence[GroupProgress],
    theirs: Sequence[GroupProgress],
    slack_s: float,
) -> bool:
    """Return True if all of their groups were over before a rank that came later made its own.

    Ranks that were started together may be slow to note a group.
    """
    born_s, made_s = rank.born_age_s, own[0].made_age_s
    if born_s is None or made_s is None:
        return False
    return all(
        (group.made_age_s or 0.0) > born_s + slack_s
        and (group.ended_age_s or 0.0) > made_s + slack_s
        for group in theirs
    )


def _by_time(
    own: Sequence[GroupProgress],
    theirs: Sequence[GroupProgress],
    slack_s: float,
    *,
    late: bool,
) -> tuple[dict[int, int], bool]:
    """The index of each group of a rank, mapped to its index on the rank that made more groups.

    A group keeps its index unless the group of that index had ended by then. If making a group does
    not wait for the others (NCCL), a rank may just be late: then the name decides, which c10d gives
    to only one group of a world. A group that matches none gets a new index, if the rank was
    started when there had been groups. The flag is True if any of that is a guess.
    """
    places: dict[int, int] = {}
    guess = False
    least = 0
    beyond = theirs[-1].key.index + 1
    for group in own:
        place = max(group.key.index, least)
        made_s = group.made_age_s
        if made_s is not None and _was_over(place, theirs, made_s, slack_s):
            found = None if late else _by_name(group, own, theirs)
            if found is None:
                guess = True
                found = _nearest(group, theirs, least, slack_s, late=late)
            if found is not None:
                place = found
            elif late:
                place = beyond + group.key.index
        places[group.key.index] = place
        if place < beyond:
            least = place + 1
    return places, guess


def _by_name(
    group: GroupProgress, own: Sequence[GroupProgress], theirs: Sequence[GroupProgress]
) -> int | None:
    """The one of theirs that has its name, where each side has had one of that name."""
    if theirs[0].key.index or own[0].key.index or not group.name:
        return None  # some are forgotten
    mine, same = ([one for one in side if one.name == group.name] for side in (own, theirs))
    return same[0].key.index if len(mine) == len(same) == 1 else None


def _nearest(
    group: GroupProgress,
    theirs: Sequence[GroupProgress],
    least: int,
    slack_s: float,
    *,
    late: bool,
) -> int | None:
    """The one of theirs that was there at the same time, and was made at the same time.

    A rank may note it late: of one that was started later the group that lives now is the
    one of that name that lives with the others.
    """
    made_s = group.made_age_s or 0.0
    apart_s = {}
    for other in theirs:
        if other.key.index < least or other.made_age_s is None:
            continue
        other_name = bool(group.name and other.name and group.name != other.name)
        was_over = (other.ended_age_s or 0.0) > made_s + slack_s
        ended_before = (group.ended_age_s or 0.0) > other.made_age_s + slack_s
        distance_s = abs(other.made_age_s - made_s)
        together = distance_s <= max(slack_s, timing.TOGETHER_S) or (
            late and group.alive and other.alive
        )
        if together and not (other_name or was_over or ended_before):
            apart_s[other.key.index] = distance_s
    return min(apart_s, key=lambda index: (apart_s[index], index), default=None)


def _was_over(index: int, theirs: Sequence[GroupProgress], made_s: float, slack_s: float) -> bool:
    """Return True if a group was destroyed before another was made, as forgotten ones were.

    slack_s: 0 where both were timed by one clock. By others a world may follow the one before
    within that, so there it has to be one that is over by now, and was made so much earlier.
    """
    known = next((group for group in theirs if group.key.index == index), None)
    if known is None:
        return index < theirs[0].key.index
    if known.ended_age_s is None:
        return False
    if slack_s:
        return known.made_age_s is not None and known.made_age_s > made_s + slack_s
    return known.ended_age_s > made_s


def _with_places(
    rank: RankSnapshot, moved: dict[int, dict[int, int]], families: _Families
) -> RankSnapshot:
    keys: dict[int, GroupKey] = {}

    def key_of(key: GroupKey) -> GroupKey:
        if id(key) not in keys:
            places = moved.get(families.number(key), {})
            keys[id(key)] = replace(key, index=places.get(key.index, key.index))
        return keys[id(key)]

    return replace(
        rank,
        groups=tuple(replace(group, key=key_of(group.key)) for group in rank.groups),
        ops=tuple(replace(op, group=key_of(op.group)) for op in rank.ops),
    )
