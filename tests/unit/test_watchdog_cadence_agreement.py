"""Ranks whose checkpoints differ."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

from made_pages import group, page

from hangwatch.evidence.pages.finder import OpenPage, Seen
from hangwatch.evidence.pages.look import Look
from hangwatch.model.calls import GroupKey
from hangwatch.watchdog import timing
from hangwatch.watchdog.cadence import Agreement, differ

if TYPE_CHECKING:
    from hangwatch.model.page import PageGroup

SAME = ((32, 7), (64, 8))


def seen(*groups: PageGroup) -> dict[int, Seen]:
    """One rank for each group, which is its only one."""
    no_page = cast("OpenPage", None)
    return {n: Seen(no_page, page(n, groups=(one,))) for n, one in enumerate(groups)}


def test_ranks_with_the_same_hashes_agree() -> None:
    assert not differ(seen(group(checkpoints=SAME), group(checkpoints=SAME)))


def test_a_rank_that_is_behind_agrees_as_far_as_it_is() -> None:
    assert not differ(seen(group(checkpoints=SAME), group(checkpoints=SAME[:1]), group()))


def test_ranks_with_another_hash_at_one_place_differ() -> None:
    assert differ(seen(group(checkpoints=SAME), group(checkpoints=((32, 7), (64, 9)))))


def test_groups_are_compared_by_their_members() -> None:
    one = group(checkpoints=SAME, key=GroupKey((0, 1), "tp"))
    other = group(checkpoints=((32, 1),), key=GroupKey((2, 3), "tp"))
    assert not differ(seen(one, one, other, other))


def test_a_group_that_was_destroyed_is_left_alone() -> None:
    gone = group(checkpoints=((32, 1),), alive=False)
    assert not differ(seen(group(checkpoints=SAME), gone))


def test_ranks_that_differ_on_purpose_are_looked_at_less_and_less_often() -> None:
    ranks = seen(group(checkpoints=SAME), group(checkpoints=((32, 1),)))
    agreement = Agreement()
    looked = [
        tenths / 10
        for tenths in range(10, 3000)
        if agreement.look_due(Look(tenths * 10**8, ranks, {}, moved=True))
    ]
    rests = [after - before for before, after in pairwise(looked)]
    assert rests[0] >= timing.COMPARE_FIRST_S
    assert all(before <= after + 0.2 for before, after in pairwise(rests))
    assert max(rests) <= timing.COMPARE_MOST_S + 0.2
    assert len(looked) < 12
