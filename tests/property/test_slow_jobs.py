"""Stragglers of simulated jobs, whose real cost is known: the same job is run without them."""

from __future__ import annotations

import pytest
from slow_jobs import (
    Delays,
    Job,
    Late,
    averaging,
    compared,
    data_parallel,
    pipeline,
    run,
    sharded,
    tensor_parallel,
    watched,
)

S = 60.0
TURN_S = 0.1


def jobs(size: int) -> dict[str, Job]:
    made = {
        "data": data_parallel(size, TURN_S),
        "averaging": averaging(size, TURN_S),
        "sharded": sharded(size, TURN_S),
    }
    if size > 4:
        made["pipeline"] = pipeline(size, 2, TURN_S)
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
    healthy_s = run(job, turns, Delays(seed)).end_s
    past = run(job, turns, Delays(seed, late=[late]))

    watch, news = watched(past, S, seed)

    assert [one.ranks for _, one in news] == [late.ranks]
    told_s, straggler = news[0]
    assert told_s < (1.5 * S + 1 if late.every == 1 else 5 * S)
    # What happens once in a while is measured by a few cases of it.
    assert straggler.fraction == pytest.approx(
        1 - healthy_s / past.end_s, abs=0.05 if late.every == 1 else 0.1
    )
    assert watch.measured_s > 0.8 * past.end_s


@pytest.mark.parametrize(
    ("size", "kind", "jitter"),
    [(2, "data", 0.3), (4, "tensor", 0.3), (8, "tensor", 0.02), (4, "sharded", 0.1)],
)
def test_chance_names_nobody(size: int, kind: str, jitter: float) -> None:
    past = run(jobs(size)[kind], int(5 * S / TURN_S), Delays(1, jitter))

    _, news = watched(past, S)

    assert news == []


@pytest.mark.parametrize(
    ("size", "alike", "learnt_s"), [(2, 20, 0.0), (4, 20, 0.0), (4, 60, 600.0)]
)
def test_larger_batches_for_many_turns_name_nobody(size: int, alike: int, learnt_s: float) -> None:
    """Of batches that take about as long as a window it has to be learnt that they change."""
    delays = Delays(5, by_turn=0.5, alike=alike)

    _, news = watched(run(data_parallel(size, 0.4), 2000, delays), S)

    assert [told_s for told_s, _ in news if told_s >= learnt_s] == []


def test_a_slow_rank_is_named_although_batches_are_larger_for_many_turns() -> None:
    delays = Delays(5, by_turn=0.5, alike=10, late=[Late((1,), factor=3.0)])

    _, news = watched(run(data_parallel(4, 0.4), 1500, delays), S)

    assert [straggler.ranks for _, straggler in news] == [(1,)]


@pytest.mark.parametrize("ranks", [(4, 5), (5,), (1, 6)])
def test_of_a_pipeline_a_slow_stage_is_named_or_a_rank(ranks: tuple[int, ...]) -> None:
    late = Late(ranks, factor=2.0)

    _, news = watched(run(pipeline(8, 4, TURN_S), 800, Delays(1, late=[late])), S)

    assert [straggler.ranks for _, straggler in news] == [ranks]


def test_a_rank_that_is_slow_for_a_while() -> None:
    late = Late((2,), extra_s=0.1, turns=range(1600, 3200))
    past = run(data_parallel(4, TURN_S), 4800, Delays(3, late=[late]))
    began_s = 1600 * TURN_S * 1.1

    _, news = watched(past, S)

    (told_s, told), (_, over) = news
    assert told.ranks == over.ranks == (2,)
    assert began_s < told_s < began_s + 1.5 * S
    assert over.since_s == pytest.approx(began_s, abs=S)
    assert over.until_s == pytest.approx(began_s + 1600 * TURN_S * 2, abs=S)


def test_one_long_wait_is_no_straggler() -> None:
    late = Late((1,), extra_s=40.0, every=1500)

    _, news = watched(run(data_parallel(4, TURN_S), 2000, Delays(4, late=[late])), S)

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
        (8, 4, "tensor", (2,)),
        (8, 4, "pipeline", (2,)),
    ],
)
@pytest.mark.parametrize("transfer_s", [0.001, 0.03])
def test_of_several_nodes_the_right_ranks_are_named(
    size: int, within: int, kind: str, ranks: tuple[int, ...], transfer_s: float
) -> None:
    job, turns = jobs(size)[kind], int(3 * S / TURN_S)
    healthy_s = run(job, turns, Delays(7, transfer_s=transfer_s)).end_s
    delays = Delays(7, late=[Late(ranks, extra_s=0.05)], transfer_s=transfer_s)
    past = run(job, turns, delays)

    news, asked = compared(past, within, S)

    assert [straggler.ranks for _, straggler in news] == [ranks]
    told_s, straggler = news[0]
    assert told_s < 3 * S
    assert straggler.fraction == pytest.approx(1 - healthy_s / past.end_s, abs=0.06)
    node = set(range(ranks[0] // within * within, ranks[0] // within * within + within))
    assert straggler.why.like in (node - set(ranks) or set(range(size)) - set(ranks))
    assert asked <= 12


@pytest.mark.parametrize(
    ("size", "within", "kind", "jitter"),
    [(2, 1, "data", 0.3), (8, 4, "data", 0.1), (8, 2, "tensor", 0.3)],
)
def test_of_several_healthy_nodes_none_is_named_and_one_question_is_enough(
    size: int, within: int, kind: str, jitter: float
) -> None:
    past = run(jobs(size)[kind], int(5 * S / TURN_S), Delays(1, jitter))

    news, asked = compared(past, within, S)

    assert news == []
    assert asked == 1


def test_a_node_that_is_slow_for_a_while() -> None:
    late = Late((2, 3), extra_s=0.1, turns=range(1600, 3200))
    past = run(data_parallel(4, TURN_S), 4800, Delays(3, late=[late]))
    began_s, ended_s = 1600 * TURN_S * 1.1, 1600 * TURN_S * 3.2

    news, _ = compared(past, 2, S)

    (told_s, told), (over_s, over) = news
    assert told.ranks == over.ranks == (2, 3)
    assert began_s < told_s < began_s + 2.5 * S
    assert ended_s < over_s < ended_s + 2 * S
