"""Ranks that wait for messages of each other, none of which comes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from snapshots import (
    PAIR,
    SCRIPT,
    W,
    blocked,
    frame,
    job,
    main_thread,
    only,
    op,
    rank,
    source,
    world,
)

from hangwatch.diagnosis.facts.history import has_left_out
from hangwatch.diagnosis.facts.job import index
from hangwatch.diagnosis.facts.wait_points import Channel
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Certainty, Kind, OpState, What

if TYPE_CHECKING:
    from hangwatch.model.snapshot import OpRecord, RankSnapshot
    from hangwatch.model.verdict import Verdict

OTHER = GroupKey((0, 1), "other")


def messages(number: int, kind: str, line: int, tags: list[int], **last: Any) -> RankSnapshot:
    """A rank of two that has exchanged messages, and waits in the last one."""
    peer = 1 - number
    made = [op(PAIR, n, kind, line=line, peer=peer, tag=tag) for n, tag in enumerate(tags[:-1])]
    now = {"peer": peer, "tag": tags[-1], "line": line, **last}
    group = now.pop("group", PAIR)
    return rank(number, PAIR, *made, blocked(group, len(tags), kind, **now))


def test_the_rank_whose_tags_do_not_go_on_as_before_is_named() -> None:
    sender = messages(0, "send", 5, [0, 1, 2, 3, 4, 5, 6])
    receiver = messages(1, "recv", 9, [0, 1, 2, 3, 4, 5, 7])
    verdict = only(job(sender, receiver))
    assert (verdict.kind, verdict.culprits, verdict.victims) == (Kind.MISSING_PEER, (1,), (0,))
    assert (verdict.certainty, verdict.hang) == (Certainty.LIKELY, Certainty.PROVED)
    assert verdict.headline == (
        "Rank 1 receives with tag 7 at train.py:9 what rank 0 sends with tag 6 at train.py:5."
    )
    assert "went up by 1 each time before, and by 2 now" in verdict.explanation
    assert verdict.cause is not None
    assert (verdict.cause.what, verdict.cause.site) == (What.DIFFERENT_ARGUMENT, verdict.site)
    assert "same tag" in verdict.advice[0]


def test_where_no_tags_tell_both_are_named() -> None:
    verdict = only(job(messages(0, "send", 5, [3]), messages(1, "recv", 9, [4])))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert "tag 3" in verdict.headline
    assert "tag 4" in verdict.headline


def test_a_message_in_two_groups_is_told_as_such() -> None:
    receiver = messages(1, "recv", 9, [0], group=OTHER)
    verdict = only(job(messages(0, "send", 5, [0]), receiver))
    assert "group default_pg" in verdict.headline
    assert "group other" in verdict.headline
    assert verdict.advice[0].startswith("Pass the same group on both sides")


@pytest.mark.parametrize(("kind", "told"), [("recv", "wait to receive"), ("send", "wait to send")])
def test_of_two_that_do_the_same_neither_is_at_fault_alone(kind: str, told: str) -> None:
    verdict = only(job(messages(0, kind, 5, [0]), messages(1, kind, 5, [0])))
    assert (verdict.kind, verdict.culprits) == (Kind.MISSING_PEER, (0, 1))
    assert told in verdict.headline
    assert verdict.certainty is Certainty.POSSIBLE


def test_the_condition_is_told_whose_other_way_does_the_counterpart() -> None:
    text = source(
        """
        def collect(env):
            if env.is_main:
                for peer in others:
                    dist.recv(buffer, peer)
                return
            dist.send(buffer, 0)
        """
    )
    ranks = [messages(number, "recv", 4, [0]) for number in (0, 1)]
    found = only(job(*ranks, **text)).cause
    assert found is not None
    assert found.site is not None
    assert (found.what, found.site.line) == (What.RANK_CONDITION, 2)
    assert (found.site.file, found.certainty) == (SCRIPT, Certainty.POSSIBLE)


def turns(count: int, *last: str) -> list[OpRecord]:
    """Turns of a rank: a gather, a send to rank 0, a recv of it and a sum; then others."""
    names = [*("gather", "send", "recv", "sum") * count, *last]
    lines = {"gather": 1, "send": 2, "recv": 3, "sum": 4}
    wires = {"gather": "all_gather", "sum": "all_reduce"}
    return [
        op(W, n, wires.get(name, name), line=lines[name], peer=0) for n, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("calls", "left_out"),
    [
        (turns(6, "gather", "recv", "sum"), True),
        (turns(6, "gather", "send", "recv", "sum"), False),
        (turns(6), False),  # it has not come by again
        (turns(2, "gather", "recv", "sum"), False),  # too few to tell
        ([*turns(3, "gather", "recv"), *turns(3, "gather", "recv", "sum")], False),  # as at times
    ],
)
def test_a_rank_that_went_by_without_the_message_it_always_sent(
    calls: list[OpRecord],
    left_out: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    found = index(job(rank(0, W), rank(1, W, *calls)))
    assert has_left_out(found, Channel(0, 0, 1, sends=False, tag=0, turn=0, nth=0)) is left_out


def test_a_call_of_nccls_that_has_not_returned_waits_for_its_connection_alone() -> None:
    def sends(number: int, peer: int, size: int, waited_s: float = 20.0) -> RankSnapshot:
        group = world(size)
        call = blocked(group, 1, "batch_isend_irecv", wire="send", p2p=True, peer=peer)
        made = rank(number, group, replace(call, blocked_age_s=waited_s))
        return replace(made, groups=tuple(replace(one, in_order=True) for one in made.groups))

    for size in (2, 3):
        found = only(job(*(sends(n, (n + 1) % size, size) for n in range(size))))
        assert (found.kind, found.culprits) == (Kind.COLLECTIVE_STUCK, ())
        assert "On NCCL they return once the ranks are connected" in found.explanation
        assert not any("alike" in advice for advice in found.advice)
    # Who is elsewhere is missing to all that wait for one another.
    busy = rank(2, threads=main_thread(frame(33, "load")), groups=sends(2, 0, 3).groups)
    found = only(job(sends(0, 1, 3), sends(1, 2, 3), busy))
    assert (found.kind, found.culprits, found.victims) == (Kind.MISSING_PEER, (2,), (0, 1))
    # Of calls that the program waits for on the host it is known what comes next: nothing.
    found = only(job(sends(0, 1, 2, waited_s=15.0), sends(1, 0, 2, waited_s=15.0)))
    assert (found.kind, found.culprits) == (Kind.MISSING_PEER, (0, 1))


def exchanges(number: int, tags: list[int], *, done: int) -> RankSnapshot:
    """A rank of two that posts a send and a recv each time, then waits; so many are complete."""
    made = [
        replace(
            op(PAIR, n, kind, line=5 if kind == "send" else 6, peer=1 - number, tag=tag),
            state=OpState.DONE if n < 2 * done else OpState.ISSUED,
        )
        for at, tag in enumerate(tags)
        for n, kind in ((2 * at, "send"), (2 * at + 1, "recv"))
    ]
    first = next(at for at, call in enumerate(made) if call.state is OpState.ISSUED)
    made[first] = replace(made[first], state=OpState.BLOCKED, blocked_age_s=20.0)
    return rank(number, PAIR, *made)


def test_what_a_rank_has_posted_is_compared_though_it_waits_in_another_call() -> None:
    tags = [10, 12, 14, 16, 18]
    pair = job(exchanges(0, [*tags, 22], done=5), exchanges(1, [*tags, 20], done=5))
    verdict = only(pair)
    assert (verdict.culprits, verdict.certainty) == ((0,), Certainty.LIKELY)
    assert verdict.headline == (
        "Rank 0 receives with tag 22 at train.py:6 what rank 1 sends with tag 20 at train.py:5."
    )
    assert verdict.cause is not None
    assert verdict.cause.what is What.DIFFERENT_ARGUMENT


def test_that_none_of_them_receives_is_not_said_where_they_do_with_another_tag() -> None:
    verdict = only(job(exchanges(0, [1, 2], done=1), exchanges(1, [1, 3], done=1)))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert "what they receive has another tag" in verdict.headline


def test_of_two_that_send_from_one_line_it_does_not_matter_who_never_did_before() -> None:
    """Each gives and takes in turns; now both give."""
    turns = ["send", "recv"] * 3
    ranks = [
        rank(
            number,
            PAIR,
            *(
                op(PAIR, n, kind, line=5 if kind == "send" else 6, peer=1 - number)
                for n, kind in made
            ),
            blocked(PAIR, len(turns), "send", line=5, peer=1 - number),
        )
        for number, made in enumerate((enumerate(turns), enumerate(turns[::-1])))
    ]
    verdict = only(job(*ranks))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)


def test_of_one_to_which_all_went_while_others_never_had_any_the_sender_may_be_wrong() -> None:
    trio = world(3)

    def verdict(other: int) -> Verdict:
        sent = [op(trio, n, "send", line=5, peer=2) for n in range(other)]
        sender = rank(0, trio, *sent, blocked(trio, other, "send", line=5, peer=2))
        taken = [op(trio, n, "recv", line=9, peer=0) for n in range(other)]
        ended = rank(2, trio, *taken, blocked(trio, 1, "reduce", line=12))
        waits = rank(1, trio, blocked(trio, 0, "recv", line=9, peer=0))
        return only(job(sender, ended, waits))

    several = verdict(4)
    assert (several.culprits, several.certainty) == ((0, 2), Certainty.POSSIBLE)
    assert several.cause is not None
    assert several.cause.what is What.DIFFERENT_ARGUMENT
    assert verdict(1).culprits == (2,)


def test_two_tags_that_the_order_of_a_set_gives_are_told_the_loop() -> None:
    text = source(
        """
        def submit(task):
            if rank:
                dist.send(score, 0, tag=number(task))
            else:
                dist.recv(score, 1, tag=number(task))
        tasks = set(suites)
        for task in tasks:
            submit(task)
        """
    )
    waits = (messages(1, "send", 3, [4]), 3), (messages(0, "recv", 5, [7]), 5)
    ranks = [
        replace(one, threads=main_thread(frame(line, "submit"), frame(8, "<module>")))
        for one, line in waits
    ]
    verdict = only(job(*ranks, **text))
    assert verdict.cause is not None
    assert verdict.cause.site is not None
    assert (verdict.cause.what, verdict.cause.site.line) == (What.DIFFERENT_ORDER, 7)


def test_the_counterpart_may_be_made_by_a_helper_that_the_other_way_calls() -> None:
    text = source(
        """
        def balance(mine, theirs):
            if mine >= theirs:
                return give(mine - theirs)
            return take(theirs - mine)
        def give(count):
            dist.send(rows[:count], peer)
        def take(count):
            dist.recv(rows[:count], peer)
        """
    )
    stack = main_thread(frame(6, "give"), frame(3, "balance"))
    ranks = [replace(messages(number, "send", 6, [0]), threads=stack) for number in (0, 1)]
    verdict = only(job(*ranks, **text))
    assert verdict.cause is not None
    assert verdict.cause.site is not None
    assert (verdict.cause.what, verdict.cause.site.line) == (What.DATA_CONDITION, 2)
    assert verdict.advice[0].startswith(
        "Make `if mine >= theirs` at train.py:2 hold on only one of two"
    )


def test_two_that_send_in_loops_of_their_own_are_told_these_loops() -> None:
    text = """
    def forward():
        for item in batch.split(4):
            dist.send(item, 1)
    def backward():
        for item in saved:
            dist.send(item.grad, 0)
    def main():
        backward(forward())
    """

    def sends(number: int, line: int) -> RankSnapshot:
        call = blocked(PAIR, 9, "send", peer=1 - number, line=line, p2p=True)
        return rank(number, PAIR, call, threads=main_thread(frame(line), frame(8, "main")))

    verdict = only(job(sends(0, 3), sends(1, 6), **source(text)))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    found = verdict.cause
    assert found is not None
    lines = [one.site.line for one in (found, *found.others) if one.site is not None]
    assert (found.what, lines) == (What.UNMATCHED_P2P, [2, 5])
    (advice,) = verdict.advice
    assert advice.startswith(
        "Use the same number of messages on both sides of `for item in batch.split(4)`"
    )
