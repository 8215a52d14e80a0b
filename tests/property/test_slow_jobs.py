"""Stragglers of simulated jobs, whose real cost is known: the same job is run without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from slow_jobs import (
    Compared,
    Delays,
    Job,
    compared,
    data_parallel,
    run,
    tensor_parallel,
    watched,
)

if TYPE_CHECKING:
    from random import Random

S = 60.0
TURN_S = 0.1


@dataclass(frozen=True)
class Late:
    """Ranks that take longer in some turns."""

    ranks: tuple[int, ...]
    factor: float = 1.0
    extra_s: float = 0.0
    every: int = 1
    """Turns."""

    def __call__(self, rank: int, turn: int, _: Random) -> tuple[float, float]:
        """What makes them slow."""
        if rank not in self.ranks or turn % self.every:
            return 1.0, 0.0
        return self.factor, self.extra_s


def jobs(size: int) -> dict[str, Job]:
    made = {"data": data_parallel(size, TURN_S)}
    if size > 2:
        made["tensor"] = tensor_parallel(size, 2, TURN_S)
    return made


CASES = [
    pytest.param(size, kind, late, seed, id=f"{kind}-{size}-{name}")
    for seed, (size, kind, name, late) in enumerate(
        (size, kind, name, late)
        for size in (2, 4)
        for kind in jobs(size)
        for name, late in (
            ("a third late", Late((1,), extra_s=0.05)),
            ("slow", Late((size - 1,), factor=1.3)),
            ("seldom", Late((0,), extra_s=2.0, every=80)),
            *((("two", Late((0, 1), extra_s=0.04)),) if size > 2 else ()),
        )
    )
]


@pytest.mark.parametrize(("size", "kind", "late", "seed"), CASES)
def test_the_right_ranks_are_named_with_what_they_cost(
    size: int, kind: str, late: Late, seed: int
) -> None:
    job = jobs(size)[kind]
    turns = int((2 if late.every == 1 else 5) * S / TURN_S)
    healthy_s, _ = run(job, turns, Delays(seed))
    end_s, lines = run(job, turns, Delays(seed, slow=late))

    watch, news = watched(job, lines, end_s, S, seed)

    assert [one.ranks for _, one in news] == [late.ranks]
    told_s, straggler = news[0]
    assert told_s < (1.5 * S + 1 if late.every == 1 else 5 * S)
    # What happens once in a while is measured by a few cases of it.
    assert straggler.fraction == pytest.approx(
        1 - healthy_s / end_s, abs=0.05 if late.every == 1 else 0.1
    )
    assert watch.measured_s > 0.8 * end_s


@pytest.mark.parametrize(
    ("size", "kind", "jitter"),
    [(2, "data", 0.3), (4, "tensor", 0.3), (8, "tensor", 0.02)],
)
def test_chance_names_nobody(size: int, kind: str, jitter: float) -> None:
    job = jobs(size)[kind]
    end_s, lines = run(job, int(5 * S / TURN_S), Delays(1, jitter))

    _, news = watched(job, lines, end_s, S)

    assert news == []


def test_a_rank_that_is_slow_for_a_while() -> None:
    job = data_parallel(4, TURN_S)

    def slow(rank: int, turn: int, _: Random) -> tuple[float, float]:
        return 1.0, 0.1 if rank == 2 and 1600 <= turn < 3200 else 0.0

    end_s, lines = run(job, 4800, Delays(3, slow=slow))
    began_s = 1600 * TURN_S * 1.1

    _, news = watched(job, lines, end_s, S)

    (told_s, told), (_, over) = news
    assert told.ranks == over.ranks == (2,)
    assert began_s < told_s < began_s + 1.5 * S
    assert over.since_s == pytest.approx(began_s, abs=S)
    assert over.until_s == pytest.approx(began_s + 1600 * TURN_S * 2, abs=S)


def test_one_long_wait_is_no_straggler() -> None:
    job = data_parallel(4, TURN_S)
    end_s, lines = run(job, 2000, Delays(4, slow=Late((1,), extra_s=40.0, every=1500)))

    _, news = watched(job, lines, end_s, S)

    assert news == []


@pytest.mark.parametrize(
    ("size", "within", "kind", "ranks"),
    [
        (2, 1, "data", (1,)),
        (4, 2, "data", (1,)),
        (4, 2, "data", (1, 2)),
        (8, 2, "data", (4, 5)),
        (8, 2, "tensor", (5,)),
        (8, 4, "tensor", (4, 5, 6, 7)),
    ],
)
@pytest.mark.parametrize("transfer_s", [0.001, 0.03])
def test_of_several_nodes_the_right_ranks_are_named(
    size: int, within: int, kind: str, ranks: tuple[int, ...], transfer_s: float
) -> None:
    job, turns = jobs(size)[kind], int(3 * S / TURN_S)
    healthy_s, _ = run(job, turns, Delays(7, transfer_s=transfer_s))
    delays = Delays(7, slow=Late(ranks, extra_s=0.05), transfer_s=transfer_s)
    end_s, lines = run(job, turns, delays)

    news, asked = compared(job, lines, end_s, within, Compared(S))

    assert [straggler.ranks for _, straggler in news] == [ranks]
    told_s, straggler = news[0]
    assert told_s < 3 * S
    assert straggler.fraction == pytest.approx(1 - healthy_s / end_s, abs=0.06)
    node = set(range(ranks[0] // within * within, ranks[0] // within * within + within))
    assert straggler.why.like in (node - set(ranks) or set(job.ranks) - set(ranks))
    assert asked <= 12


@pytest.mark.parametrize(
    ("size", "within", "kind", "jitter"),
    [(2, 1, "data", 0.3), (8, 4, "data", 0.1), (8, 2, "tensor", 0.3)],
)
def test_of_several_healthy_nodes_none_is_named_and_one_question_is_enough(
    size: int, within: int, kind: str, jitter: float
) -> None:
    job = jobs(size)[kind]
    end_s, lines = run(job, int(5 * S / TURN_S), Delays(1, jitter))

    news, asked = compared(job, lines, end_s, within, Compared(S))

    assert news == []
    assert asked == 1


def test_a_node_that_is_slow_for_a_while() -> None:
    job = data_parallel(4, TURN_S)

    def slow(rank: int, turn: int, _: Random) -> tuple[float, float]:
        return 1.0, 0.1 if rank > 1 and 1600 <= turn < 3200 else 0.0

    end_s, lines = run(job, 4800, Delays(3, slow=slow))
    began_s, ended_s = 1600 * TURN_S * 1.1, 1600 * TURN_S * 3.2

    news, _ = compared(job, lines, end_s, 2, Compared(S))

    (told_s, told), (over_s, over) = news
    assert told.ranks == over.ranks == (2, 3)
    assert began_s < told_s < began_s + 2.5 * S
    assert ended_s < over_s < ended_s + 2 * S
