"""Who waits for which key of a store, and who has set such keys before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from snapshots import PAIR, SCRIPT, W, blocked, frame, job, main_thread, only, op, rank, world

from hangwatch.diagnosis.facts.history import AWAITS_KEY, SETS_KEY
from hangwatch.diagnosis.facts.stores import awaited_keys, nearest, setter
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Certainty, Kind, Reason, State, What
from hangwatch.model.snapshot import Mark, ProcessState

if TYPE_CHECKING:
    from typing import Any

    from hangwatch.model.snapshot import RankSnapshot

GET = Site(SCRIPT, 9, "fetch")
SET = Site(SCRIPT, 5, "publish")


def sets(key: str, count: int = 9, site: Site = SET) -> Mark:
    return Mark(SETS_KEY, key, count, 40.0, site)


def at_key(number: int, key: str, *marks: Mark, age_s: float = 40.0, **more: Any) -> RankSnapshot:
    """A rank that waits for a key."""
    return rank(
        number,
        PAIR,
        in_call="store.get",
        in_call_age_s=age_s,
        in_call_site=GET,
        marks=(Mark(AWAITS_KEY, key, 10, age_s, GET), *marks),
        **more,
    )


def test_the_keys_are_those_of_the_line_that_it_is_at() -> None:
    other = Mark(AWAITS_KEY, "b", 1, 1.0, Site(SCRIPT, 70, "load"))
    assert awaited_keys(at_key(0, "a\nc", other)) == ("a", "c")
    assert awaited_keys(rank(0, W, marks=(other,))) == ()


def test_a_key_is_set_where_those_are_that_differ_in_numbers_only() -> None:
    ranks = {0: rank(0, W, marks=(sets("vocab/8"), sets("done", site=GET)))}
    found = setter(ranks, ["vocab/9"])
    assert found is not None
    assert (found.site, found.key, found.behind) == (SET, "vocab/8", (0,))
    assert setter(ranks, ["vocabulary/9"]) is None
    assert setter(ranks, ["vocab/8"]) is None  # it is there: another store has it, or it is taken


def test_of_several_ranks_it_is_the_one_that_set_such_keys_less_often() -> None:
    ranks = {i: rank(i, W, marks=(sets(f"ready/8/{i}", 8 if i == 1 else 9),)) for i in range(3)}
    found = setter(ranks, ["ready/9/1"])
    assert found is not None
    assert found.behind == (1,)


@pytest.mark.parametrize(("key", "name"), [("done_9", "done-9"), ("lr", None), ("done-9", None)])
def test_a_key_of_nearly_that_name_is_found(key: str, name: str | None) -> None:
    found = nearest({0: rank(0, W, marks=(sets("done-9"),))}, [key])
    assert (found.key if found is not None else None) == name


def test_the_rank_that_set_such_keys_is_to_blame_for_the_one_that_is_missing() -> None:
    found = only(job(at_key(0, "vocab/9", sets("vocab/8")), at_key(1, "vocab/9"), size=2))
    assert (found.kind, found.culprits, found.victims) == (Kind.MISSING_PEER, (0,), (1,))
    assert found.certainty is Certainty.LIKELY
    assert "did not set the key `vocab/9`" in found.headline
    assert found.site == GET


def test_it_is_so_where_that_rank_waits_in_a_collective() -> None:
    publisher = rank(0, PAIR, op(PAIR, 7), blocked(PAIR, 8), marks=(sets("vocab/8"),))
    found = only(job(publisher, at_key(1, "vocab/9"), size=2))
    assert (found.kind, found.culprits) == (Kind.MISSING_PEER, (0,))


def test_of_one_that_waits_where_it_never_was_the_other_may_ask_for_one_too_many() -> None:
    publisher = rank(0, PAIR, op(PAIR, 7), blocked(PAIR, 8, line=30), marks=(sets("vocab/8"),))
    found = only(job(publisher, at_key(1, "vocab/9"), size=2))
    assert (found.culprits, found.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert found.headline == (
        "Rank 1 waits for the key `vocab/9` of the store, but rank 0 set keys of this form only up "
        "to `vocab/8` and went on."
    )
    assert found.advice[0].startswith("Count the same way on both sides: ")


def test_who_asks_for_another_key_than_others_in_the_same_turn_is_named() -> None:
    trio = world(3)

    def asked(number: int, key: str, count: int) -> RankSnapshot:
        mark = Mark(AWAITS_KEY, key, count, 40.0, GET)
        return rank(number, trio, op(trio, 7), blocked(trio, 8, age=40.0), marks=(mark,))

    publisher = replace(asked(0, "", 0), marks=(sets("plan/9/3", 10),))
    behind = rank(2, trio, op(trio, 7))
    waits = replace(at_key(2, "plan/9/1"), ops=behind.ops, groups=behind.groups)
    found = only(job(publisher, asked(1, "plan/9/3", 10), waits, size=3))
    assert (found.kind, found.culprits, found.victims) == (Kind.MISSING_PEER, (2,), (0, 1))
    assert "but rank 1 asked for `plan/9/3`, which was set" in found.headline
    assert found.cause is not None
    assert (found.cause.what, found.cause.site) == (What.DIFFERENT_ARGUMENT, GET)
    assert found.advice[0].startswith(
        "Compute the key from values that are the same on all ranks: rank 2"
    )
    # Where several keys are set in a turn, each may be for one rank.
    many = replace(publisher, marks=(sets("plan/9/3", 20),))
    assert only(job(many, asked(1, "plan/9/3", 10), waits, size=3)).culprits == (0,)
    # Who came by less often asked for one of a turn before.
    before = only(job(publisher, asked(1, "plan/9/3", 9), waits, size=3))
    assert before.culprits == (0,)


def test_of_ranks_that_answer_each_other_it_is_the_turn_of_who_has_set_least_lately() -> None:
    def rank_of(number: int, waits: str, last: str, count: int, age_s: float) -> RankSnapshot:
        made = replace(sets(last, count), age_s=age_s)
        return replace(at_key(number, waits, made), groups=())

    server = rank_of(0, "grad/8/2", "weights/8", 9, 41.0)
    sent = rank_of(1, "weights/9", "grad/8/1", 9, 40.5)
    silent = rank_of(2, "weights/9", "grad/7/2", 8, 42.0)
    verdict = only(job(server, sent, silent))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (2,))
    assert "did not set the key `grad/8/2` of the store" in verdict.headline
    # And of two it is the server, where it has the answer and gives none.
    answered = rank_of(1, "weights/9", "grad/8/1", 9, 40.5)
    verdict = only(job(rank_of(0, "grad/9/1", "weights/8", 9, 41.0), answered, size=2))
    assert verdict.culprits == (0,)


def test_who_comes_by_without_setting_a_key_is_told_the_condition() -> None:
    text = """\
        def publish(key, value):
            if len(value):
                store.set(key, value)
        def run(rank):
            for turn in range(99):
                value = fetch(turn)
                publish(turn, value)
        def fetch(turn):
            return store.get(turn)
        run()
    """
    text = "\n".join(line[8:] for line in text.splitlines())
    site = Site(SCRIPT, 3, "publish")
    stack = main_thread(frame(9, "fetch"), frame(6, "run"), frame(10, "<module>"))
    ranks = [
        replace(at_key(n, key, sets(last, count, site)), threads=stack, groups=())
        for n, key, last, count in (
            (0, "grad/8/2", "weights/8", 9),
            (1, "weights/9", "grad/8/1", 9),
            (2, "weights/9", "grad/7/2", 8),
        )
    ]
    ranks[2] = replace(ranks[2], marks=tuple(replace(m, age_s=42.0) for m in ranks[2].marks))
    verdict = only(job(*ranks, sources={SCRIPT: text}))
    assert verdict.culprits == (2,)
    assert verdict.cause is not None
    assert verdict.cause.site is not None
    assert (verdict.cause.what, verdict.cause.site.line) == (What.DATA_CONDITION, 2)
    assert "also where `if len(value)` at train.py:2 leads rank 2 past" in verdict.advice[0]


def test_that_rank_may_have_come_to_its_end() -> None:
    gone = rank(0, W, marks=(sets("vocab/8"),), process=ProcessState(alive=False, exit_code=0))
    found = only(job(gone, at_key(1, "vocab/9"), size=2))
    assert (found.kind, found.reason, found.culprits) == (
        Kind.MISSING_PEER,
        Reason.EXITED,
        (0, 1),
    )


def test_where_all_wait_for_what_nobody_is_known_to_set_any_may_be_to_blame() -> None:
    found = only(job(at_key(0, "go"), at_key(1, "go"), size=2))
    assert (found.culprits, found.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert found.hang is Certainty.LIKELY


def test_who_serves_others_may_wait_as_long_as_one_of_them_works() -> None:
    working = rank(0, W, op(W, 7), marks=(sets("order/8"),))
    assert only(job(at_key(1, "order/9"), working, size=2)).kind is None
    assert only(job(at_key(1, "order/9"), size=2)).kind is None  # the other is not seen


def test_a_moment_of_waiting_is_none() -> None:
    ranks = (at_key(0, "a", age_s=0.5), at_key(1, "a"))
    assert only(job(*ranks, size=2)).kind is None


def test_a_collective_that_waits_for_it_comes_first_where_no_setter_is_known() -> None:
    found = only(job(at_key(1, "done_9"), rank(0, PAIR, blocked(PAIR, 8)), size=2))
    assert (found.kind, found.culprits) == (Kind.NEVER_ENTERED, (1,))
    assert "the key `done_9` of the store" in found.headline


def test_where_the_last_to_come_by_sets_the_key_it_is_the_one_that_came_by_less_often() -> None:
    met = Site(SCRIPT, 18, "meet")

    def came(count: int, key: str) -> Mark:
        return Mark(SETS_KEY, key, count, 41.0, met)

    waiting = [at_key(n, "names is over", came(3, "names")) for n in (0, 1)]
    behind = rank(2, PAIR, blocked(PAIR, 8), marks=(came(2, "sums"),))
    found = only(job(*waiting, behind, size=3))
    assert (found.kind, found.culprits, found.victims) == (Kind.MISSING_PEER, (2,), (0, 1))
    assert found.headline.startswith("Rank 2 did not reach train.py:18 for the key `names is over`")
    assert "by rank 2 (2 times), by ranks 0 and 1 (3 times)" in found.explanation
    assert found.advice[0].startswith("Find out what led rank 2 past train.py:18")


def test_a_wait_for_a_key_is_as_old_as_the_last_one_to_wait() -> None:
    publisher = rank(0, PAIR, blocked(PAIR, 8, age=12.0), marks=(sets("vocab/8"),))
    found = only(job(publisher, at_key(1, "vocab/9", age_s=4000.0), size=2))
    assert (found.state, found.stuck_age_s) == (State.SLOW, 12.0)
