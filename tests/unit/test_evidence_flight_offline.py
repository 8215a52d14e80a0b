"""From the dumps of all ranks to the job that they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from recorded import SECOND, UNIX, config, done, dumped, entry, status

from hangwatch.evidence.flight import job_snapshot
from hangwatch.evidence.flight.entries import calls
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import OpState

if TYPE_CHECKING:
    from hangwatch.evidence.flight.entries import FlightDump
    from hangwatch.model.snapshot import JobSnapshot, RankSnapshot


def job(*dumps: FlightDump, **taken: int) -> JobSnapshot:
    return job_snapshot(dict(enumerate(dumps)), {int(r[1:]): at for r, at in taken.items()})


def ranks(*dumps: FlightDump) -> tuple[RankSnapshot, ...]:
    return job(*dumps).ranks


def test_one_group_has_another_name_on_each_rank() -> None:
    first = dumped(entry(1, process_group=("5", "tp")), pg_config=config(g5=("tp", [0, 1])))
    other = dumped(entry(1, process_group=("7", "tp")), pg_config=config(g7=("tp", [0, 1])))
    keys = {record.group for rank in ranks(first, other) for record in rank.ops}
    assert keys == {GroupKey((0, 1), "tp")}


def test_one_name_is_two_groups_with_other_members() -> None:
    dumps = [
        dumped(entry(1, process_group=("1", "tp")), pg_config=config(g1=("tp", members)))
        for members in ([0, 1], [0, 1], [2, 3], [2, 3])
    ]
    keys = [rank.ops[0].group.ranks for rank in ranks(*dumps)]
    assert keys == [(0, 1), (0, 1), (2, 3), (2, 3)]


def test_groups_with_the_same_members_are_told_apart_where_a_rank_has_used_only_one() -> None:
    both = config(g4=("", [0, 1]), g6=("", [0, 1]))
    first = dumped(
        done(1, process_group=("4", "undefined"), pg_id=3),
        entry(1, process_group=("6", "undefined"), pg_id=5),
        pg_config=both,
    )
    later = dumped(
        entry(1, process_group=("6", "undefined"), pg_id=5), pg_config=config(g6=("", [0, 1]))
    )
    mine, theirs = ranks(first, later)
    assert [record.group.index for record in mine.ops] == [0, 1]
    assert [record.group.index for record in theirs.ops] == [1]


def test_of_a_name_that_was_used_again_the_newest_group_counts() -> None:
    (rank,) = ranks(dumped(done(9), entry(1, pg_id=2)))
    assert [record.seq for record in rank.ops] == [1]


def test_gloo_does_not_tell_members_so_those_that_used_a_group_are_taken() -> None:
    empty = {"": {"name": "", "desc": "", "ranks": "[]"}}
    pair = entry(1, "gloo:all_reduce", process_group=("3", "undefined"), pg_id=1)
    world = entry(2, "gloo:barrier", state="scheduled", retired=True)
    found = job(
        *(dumped(world, *more, pg_config=empty) for more in ([pair], [], [pair], [])),
    )
    assert found.ranks[0].ops[1].group == GroupKey((0, 2))
    assert found.ranks[1].ops[0].group == GroupKey((0, 1, 2, 3), "default_pg")
    assert any("gloo's dumps" in text for text in found.unseen)


def test_gloo_retires_what_is_complete_and_nccl_does_so_with_what_was_aborted() -> None:
    gloo, nccl = (entry(1, name, retired=True) for name in ("gloo:all_reduce", "nccl:all_reduce"))
    assert [call.finished for call in calls(dumped(gloo))] == [True]
    assert [call.finished for call in calls(dumped(nccl))] == [False]


def parts(seq: int, **changes: Any) -> list[dict[str, Any]]:
    """A coalesced send and recv, without its end."""
    return [
        entry(seq, "nccl:send 0->1", record_id=10 * seq, **changes),
        entry(seq, "nccl:recv 0<-1", record_id=10 * seq + 1, **changes),
    ]


def end(seq: int, state: str) -> dict[str, Any]:
    return entry(
        seq,
        "nccl:coalesced",
        record_id=10 * seq + 2,
        is_p2p=True,
        p2p_seq_id=seq,
        collective_seq_id=0,
        state=state,
    )


def test_the_end_of_a_coalesced_group_tells_the_state_of_its_parts() -> None:
    found = calls(dumped(*parts(1), end(1, "completed"), *parts(2), end(2, "scheduled")))
    assert [(call.finished, len(call.parts)) for call in found] == [(True, 2), (False, 2)]


@pytest.mark.parametrize("counted", [{}, status(p0=(2, 1))], ids=["2.4", "2.5"])
def test_parts_without_their_end_are_complete(counted: dict[str, Any]) -> None:
    found = calls(dumped(*parts(1), *parts(2), end(2, "scheduled"), pg_status=counted))
    assert [call.finished for call in found] == [True, False]


def test_a_single_send_is_under_way_where_the_next_entry_follows_it() -> None:
    alone = entry(4, "nccl:send 0->1", record_id=50)
    assert not calls(dumped(alone, entry(9, record_id=51), pg_status=status(p0=(9, 9))))[0].finished


def test_ranks_of_point_to_point_calls_are_those_of_the_group() -> None:
    send = entry(1, "nccl:send 0->2", process_group=("8", "pp"))
    recv = entry(1, "nccl:recv 2<-0", process_group=("8", "pp"))
    mine, theirs = (
        dumped(call, pg_config=config(g8=("pp", [0, 4, 8, 12]))) for call in (send, recv)
    )
    found = job_snapshot({0: mine, 8: theirs}, {})
    assert [(r.ops[0].wire, r.ops[0].peer) for r in found.ranks] == [("send", 8), ("recv", 0)]
    assert found.world_size == 13


def test_a_rank_without_entries_is_known_by_its_counters() -> None:
    names = config(g0=("default_pg", [0, 1]), g3=("tp", [0, 1]))
    (rank,) = ranks(dumped(pg_config=names, pg_status=status(p0=(7, 7), p1=(40, 40))))
    assert {g.key.desc: (g.enqueued, g.completed) for g in rank.groups} == {
        "default_pg": (7, 7),
        "tp": (40, 40),
    }


def test_counters_that_count_sends_too_are_not_taken_for_collectives() -> None:
    mine = dumped(entry(90, "nccl:send 0->1"), pg_status=status(p0=(90, 89)))
    theirs = dumped(pg_status=status(p0=(90, 90)))
    assert [group.enqueued for rank in ranks(mine, theirs) for group in rank.groups] == [0]


def test_what_is_unfinished_bounds_what_is_complete() -> None:
    (rank,) = ranks(dumped(entry(5), entry(6), pg_status=status(p0=(6, 2))))
    (group,) = rank.groups
    assert (group.enqueued, group.completed, group.started) == (6, 4, -1)


def test_ages_are_of_one_clock_where_it_is_known_when_a_dump_was_taken() -> None:
    found = job(dumped(entry(3)), dumped(entry(9)), r0=UNIX + 63 * SECOND)
    assert [rank.ops[0].issued_age_s for rank in found.ranks] == [60.0, 0.0]


def test_frames_give_the_line_and_the_name_that_the_user_knows() -> None:
    c10d = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    frames = [
        {"name": "all_gather", "filename": c10d, "line": 3900},
        {"name": "wrapper", "filename": c10d.replace("distributed_c10d", "c10d_logger"), "line": 8},
        {"name": "all_gather_object", "filename": c10d, "line": 3100},
        {"name": "evaluate", "filename": "/home/ada/train.py", "line": 41},
    ]
    (rank,) = ranks(dumped(entry(1, "nccl:all_gather", frames=frames)))
    (record,) = rank.ops
    assert (record.op, record.wire, record.state) == (
        "all_gather_object",
        "all_gather",
        OpState.ISSUED,
    )
    assert record.site is not None
    assert (record.site.file, record.site.line, record.site.function) == (
        "/home/ada/train.py",
        41,
        "evaluate",
    )


@pytest.mark.parametrize("said", ["[0, 0]", "[]", "nothing", None, 5, {"a": 1}, "[99999999]"])
def test_members_that_make_no_sense_are_not_believed(said: Any) -> None:
    wrong = {"0": {"name": "0", "desc": "default_pg", "ranks": said}}
    assert dumped(entry(1), pg_config=wrong).configs == {}
    assert ranks(dumped(entry(1), pg_config=wrong))[0].ops[0].group.ranks == (0,)
