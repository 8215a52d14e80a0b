"""Which costly mistakes are told, and what silences each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_pages import WORLD, page

from hangwatch.efficiency.habits import (
    Facts,
    Finding,
    RankFacts,
    ReplicaFacts,
    SamplerFacts,
    find_costs,
    note_of,
    parse_facts,
)
from hangwatch.model.calls import Site
from hangwatch.model.codec import CodecError
from hangwatch.model.kinds import Cost
from hangwatch.model.page import PageGroup

LOOP = Site("/home/me/train.py", 38, "main")
MADE = Site("/home/me/train.py", 29, "main")
GROUP = PageGroup(slot=0, name="0", key=WORLD, enqueued=1500, entered=4)


def loader(**changes: Any) -> SamplerFacts:
    """A healthy one: another order in each of three epochs."""
    return replace(SamplerFacts(LOOP, epochs=3, orders=3), **changes)


def replica(**changes: Any) -> ReplicaFacts:
    """A healthy one: 1,000 averages for 1,000 steps, by one bucket and without buffers."""
    usual = {
        "site": MADE,
        "slot": 0,
        "iteration": 1000,
        "calls": 1010,
        "steps": 1000,
        "buckets": 1,
        "broadcasts": 0,
        "hooked": False,
        "find_unused": False,
        "readings": 30,
        "unused_readings": 0,
        "uneven": False,
    }
    return ReplicaFacts(**{**usual, **changes})


def job(
    loaders: dict[str, Any] | None = None,
    replicas: dict[str, Any] | None = None,
    **changes: Any,
) -> list[RankFacts]:
    """Two ranks that are alike. changes: fields of their pages."""
    pages = {"groups": (GROUP,), **changes}
    facts = Facts((loader(**(loaders or {})),), (replica(**(replicas or {})),))
    return [RankFacts(rank, page(rank, **pages), facts) for rank in (0, 1)]


def costs(ranks: list[RankFacts]) -> list[Cost]:
    return [finding.cost for finding in find_costs(ranks)]


def test_a_healthy_job_is_told_nothing() -> None:
    assert find_costs(job()) == ()
    assert find_costs([]) == ()


def test_the_same_order_in_every_epoch_is_told_with_the_loop() -> None:
    (found,) = find_costs(job({"orders": 1}))
    assert found == Finding(Cost.SAME_ORDER, (0, 1), LOOP, 3)


@pytest.mark.parametrize(
    "healthy",
    [{"orders": 2}, {"epochs": 1}, {"site": Site("", 0, "")}],
    ids=["set_epoch", "one epoch", "no line"],
)
def test_an_order_is_not_told(healthy: dict[str, Any]) -> None:
    assert costs(job({"orders": 1, **healthy})) == []


def test_an_order_that_only_one_rank_keeps_is_not_told() -> None:
    ranks = job({"orders": 1})
    ranks[1] = replace(ranks[1], facts=replace(ranks[1].facts, loaders=(loader(),)))
    assert costs(ranks) == []


def test_averages_for_each_micro_batch_are_told() -> None:
    (found,) = find_costs(job(replicas={"steps": 250}))
    assert found == Finding(Cost.SYNC_EACH_BATCH, (0, 1), MADE, 4, 250)


@pytest.mark.parametrize(
    "healthy",
    [
        {"steps": 900},
        {"steps": -1},
        {"steps": 0},
        {"iteration": 10, "calls": 12, "steps": 2},
        {"calls": 520, "steps": 500},
        {"calls": 5000},
        {"calls": -1},
        {"broadcasts": -1},
        {"hooked": True},
        {"slot": 3},
    ],
    ids=[
        "steps that were skipped",
        "an optimizer that keeps no count",
        "no step",
        "a short trial",
        "two passes forward, one backward",
        "something else averages",
        "a group without a count",
        "large buffers",
        "a communication hook",
        "no such group",
    ],
)
def test_averages_are_not_told(healthy: dict[str, Any]) -> None:
    assert costs(job(replicas={"steps": 250, **healthy})) == []


def test_averages_are_told_apart_from_the_buffers_that_are_broadcast() -> None:
    accumulated = {"broadcasts": 2, "buckets": 1, "calls": 3010, "steps": 250}
    assert costs(job(replicas=accumulated)) == [Cost.SYNC_EACH_BATCH]
    twice_forward = {**accumulated, "calls": 2510, "steps": 500}
    assert costs(job(replicas=twice_forward)) == []


def test_what_python_issued_is_no_average() -> None:
    group = replace(GROUP, entered=500)
    assert costs(job(replicas={"calls": 1010, "steps": 500}, groups=(group,))) == []


def test_of_two_replicas_nobody_knows_whose_averages_they_are() -> None:
    ranks = job(replicas={"steps": 250})
    ranks[0] = replace(ranks[0], facts=replace(ranks[0].facts, replicas=(replica(),) * 2))
    assert costs(ranks) == []


def test_a_search_for_unused_parameters_that_never_finds_any_is_told() -> None:
    (found,) = find_costs(job(replicas={"find_unused": True, "calls": 2010}))
    assert found == Finding(Cost.UNUSED_SEARCH, (0, 1), MADE, 30)


@pytest.mark.parametrize(
    "healthy",
    [{"unused_readings": 1}, {"readings": 5}, {"uneven": True}, {"find_unused": False}],
    ids=["found some", "few readings", "a part that is skipped", "none asked for"],
)
def test_a_search_for_unused_parameters_is_not_told(healthy: dict[str, Any]) -> None:
    assert costs(job(replicas={"find_unused": True, "calls": 2010, **healthy})) == []


def test_a_search_that_found_some_on_one_rank_is_not_told() -> None:
    ranks = job(replicas={"find_unused": True, "calls": 2010})
    found = replica(find_unused=True, unused_readings=1)
    ranks[1] = replace(ranks[1], facts=replace(ranks[1].facts, replicas=(found,)))
    assert costs(ranks) == []


@pytest.mark.parametrize("cost", Cost)
def test_a_note_says_what_it_is_what_it_costs_and_what_to_do(cost: Cost) -> None:
    note = note_of(Finding(cost, (0, 1), LOOP, 3, 1))
    for sentence in (note.what, note.costs, note.advice):
        assert sentence.endswith(".")
        assert "{" not in sentence
    assert "anks 0 and 1" in note.what
    assert note.link.startswith("https://docs.pytorch.org/docs/stable/")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"loaders": [{}], "replicas": []}',
        b'{"loaders": 3}',
        b'{"loaders": [{"site": {"file": "a", "line": 1, "function": "f"}, "epochs": 1e999}]}',
        b"\xff",
        b"[" * 5000,
    ],
)
def test_what_is_not_a_ranks_facts_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        parse_facts(data)
