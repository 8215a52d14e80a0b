"""What watchdogs send each other, and what they accept."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangwatch.diagnosis import diagnose
from hangwatch.model import codec
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.codec import CodecError
from hangwatch.model.gpu import GpuState, Xid
from hangwatch.model.kinds import Certainty, GpuHealth, Kind, OpState, Phase, Reason, State
from hangwatch.model.snapshot import (
    Child,
    Frame,
    GroupProgress,
    JobSnapshot,
    OpRecord,
    ProcessState,
    RankSnapshot,
    ThreadStack,
    Thresholds,
)
from hangwatch.model.verdict import Verdict, Wait
from hangwatch.watchdog.peers import messages
from hangwatch.watchdog.peers.messages import (
    MAX_MESSAGE_BYTES,
    MAX_PLAIN_BYTES,
    Groups,
    Library,
    Local,
    Node,
    Published,
    Runs,
    complete,
    pack,
    ranks_of,
    runs_of,
    slim,
    unpack,
)

MAX = 1 << 20
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
GPU = GpuState(
    uuid="MIG-1",
    index=3,
    name="NVIDIA A100 MIG 1g.5gb",
    parent="GPU-1",
    health=GpuHealth.LOST,
    ranks=(0, 1),
    utilization=0.5,
    memory_used_bytes=1 << 30,
    temperature_c=61.0,
    throttle=("sw_power_cap",),
    remapped_rows={"correctable": 1, "pending": 1},
    xids=(Xid(79, 1, 3.5),),
    unreadable=("power",),
)


def stack(function: str = "step") -> ThreadStack:
    frames = (Frame("/job/train.py", 3, function), Frame("/job/train.py", 9, "<module>"))
    return ThreadStack("MainThread", 7, active=True, owns_gil=False, frames=frames)


def snapshot(rank: int = 0, ops: int = 1) -> RankSnapshot:
    key = GroupKey((0, 1), "default_pg")
    site = Site("/job/train.py", 3, "step", "loss.backward()")
    op = OpRecord(key, "all_reduce", "all_reduce", 7, p2p=False, state=OpState.BLOCKED, site=site)
    return RankSnapshot(
        rank=rank,
        node="node0",
        pid=5,
        phase=Phase.RUNNING,
        process=ProcessState(alive=True, state="S"),
        groups=(GroupProgress(key, "0", 7, 6),),
        ops=tuple(replace(op, seq=seq) for seq in range(1, ops + 1)),
        threads=(stack(),),
        children=(Child(9, "python", ProcessState(alive=True), (stack("load"),)),),
        gpu=GPU,
    )


NODE = Node("node0:1", "node0", (0, 1))
WORLD = 64


def send(local: Local, world_size: int = WORLD) -> tuple[Local, dict[str, bytes]]:
    message, blobs = pack(NODE.node, local, world_size)
    library = Library()
    received = unpack(message, NODE, world_size, {})
    assert library.missing(received.blobs()) == sorted(blobs)
    library.add(blobs)
    return complete(received, library), blobs


def test_a_snapshot_arrives_as_it_was() -> None:
    local = Local((snapshot(0), snapshot(1)), {"/job/train.py": "import torch\n"}, ("no store",))
    assert send(local)[0] == local


def test_equal_stacks_travel_once() -> None:
    _, blobs = send(Local(tuple(snapshot(rank) for rank in range(50))))
    assert len(blobs) == 2  # the ranks' and their data workers'


def test_a_stack_that_is_lost_on_the_way_leaves_a_gap() -> None:
    message, _ = pack(NODE.node, Local((snapshot(),)), WORLD)
    found = complete(unpack(message, NODE, WORLD, {}), Library())
    assert found.ranks[0].threads == (replace(stack(), frames=()),)


def test_what_does_not_have_the_hash_that_it_was_asked_by_is_not_taken() -> None:
    library = Library()
    library.add({"0" * 24: codec.dumps((Frame("/job/train.py", 3, "forged"),))})
    assert library.missing({"0" * 24}) == ["0" * 24]
    assert library.frames("0" * 24) == ()


def test_no_stack_and_an_empty_one_stay_apart() -> None:
    local = Local((replace(snapshot(), threads=None), replace(snapshot(1), threads=())))
    assert [rank.threads for rank in send(local)[0].ranks] == [None, ()]


def test_equal_groups_of_several_answers_are_one_object() -> None:
    groups: Groups = {}
    found = []
    for number in (0, 1):
        node = Node(f"node{number}:1", f"node{number}", (number,))
        message, _ = pack(node.node, Local((snapshot(number),)), WORLD)
        found.append(unpack(message, node, WORLD, groups).ranks[0])
    assert found[0].groups[0].key is found[1].groups[0].key is found[1].ops[0].group


def test_a_long_history_is_shortened_in_a_large_job_but_for_what_a_rank_is_in() -> None:
    ops = snapshot(ops=500).ops
    done = tuple(replace(op, state=OpState.DONE) for op in ops[3:])
    found, _ = send(Local((replace(snapshot(), ops=ops[:3] + done),)), 10_240)
    assert [op.seq for op in found.ranks[0].ops] == [1, 2, 3, *range(492, 501)]


def test_a_history_that_is_too_large_is_shortened_until_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 1_500)
    ops = tuple(replace(op, state=OpState.DONE) for op in snapshot(ops=500).ops)
    found, _ = send(Local((replace(snapshot(), ops=ops),)))
    assert len(found.ranks[0].ops) in (4, 8, 16, 32, 64)
    assert found.ranks[0].ops[-1].seq == 500


def test_what_does_not_fit_at_all_is_left_out_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 500)
    ranks = tuple(replace(snapshot(rank), node=secrets.token_hex(9)) for rank in range(50))
    message, _ = pack(NODE.node, Local(ranks), WORLD)
    found = complete(unpack(message, NODE, WORLD, {}), Library())
    assert found == Local((), unseen=("its answer was too large",))


@given(st.lists(st.integers(0, 40)).map(tuple))
def test_ranks_of_a_group_arrive_in_their_order(ranks: tuple[int, ...]) -> None:
    runs = runs_of(ranks)
    assert ranks_of(runs, 1000) == ranks
    assert len(runs) <= len(ranks)


def test_a_regular_group_is_a_few_numbers() -> None:
    assert runs_of(tuple(range(10_240))) == ((0, 10_240, 1),)
    assert runs_of(tuple(range(3, 10_240, 64))) == ((3, 160, 64),)


@pytest.mark.parametrize(
    "runs", [((0, 65, 1),), ((60, 5, 1),), ((3, 5, -1),), ((0, 1 << 60, 0),), ((1 << 70, 1, 1),)]
)
def test_a_group_with_ranks_that_there_are_not_is_refused(runs: Runs) -> None:
    with pytest.raises(CodecError):
        ranks_of(runs, WORLD)


def answer(**values: Any) -> bytes:
    """An answer of node0 with some parts replaced."""
    message, _ = pack(NODE.node, Local((snapshot(0), snapshot(1))), WORLD)
    plain = orjson.loads(codec.decompress(message, MAX))
    return codec.compress(orjson.dumps({**plain, **values}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no answer",
        codec.compress(b"[]"),
        codec.compress(b"{" * 100_000),
        codec.compress(b" " * (MAX_PLAIN_BYTES + 1)),
        b"x" * (MAX_MESSAGE_BYTES + 1),
        answer(more=1),
        answer(answer={"node": "node1:1"}),
        answer(ranks=[{"rank": 0}]),
        answer(ranks=7),
        answer(answer={"node": "node0:1", "groups": [{"runs": [[0, 1 << 30, 0]] * 9}]}),
        answer(answer={"node": "node0:1", "groups": [{"runs": [[0, 64, 1]]}] * 20_000}),
        answer(answer={"node": "node0:1"}),
    ],
)
def test_what_is_no_answer_of_the_node_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        unpack(data, NODE, WORLD, {})


def test_ranks_that_there_are_not_and_ranks_that_are_there_twice_are_refused() -> None:
    for numbers in ((0, 0), (64,), (-1,)):
        local = Local(tuple(snapshot(number) for number in numbers))
        with pytest.raises(CodecError, match="it has ranks"):
            unpack(pack(NODE.node, local, WORLD)[0], NODE, WORLD, {})


@given(st.data())
def test_an_answer_with_any_part_replaced_harms_nobody(data: st.DataObject) -> None:
    plain = orjson.loads(codec.decompress(answer(), MAX))
    at = plain
    while isinstance(at, dict | list) and at and data.draw(st.integers(0, 3)):
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], dict | list) or not data.draw(st.integers(0, 3)):
            at[key] = data.draw(JSON)
            break
        at = at[key]
    message = codec.compress(orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS))
    try:
        found = complete(unpack(message, NODE, WORLD, {}), Library())
    except CodecError:
        return
    job = JobSnapshot(WORLD, found.ranks)
    assert diagnose(job, Thresholds(10.0, 300.0))


def test_of_ten_thousand_ranks_only_what_is_printed_is_published() -> None:
    group = GroupKey(tuple(range(10_240)))
    waits = tuple(Wait(rank, group, 7, "all_reduce", (3,), 9.0) for rank in range(10_240))
    found = Verdict(
        State.HANG,
        Kind.DIED,
        Reason.SIGNAL,
        Certainty.PROVED,
        culprits=(3,),
        victims=tuple(range(4, 10_240)),
        headline="Rank 3 was killed.",
        group=group,
        waits=waits,
    )
    data = codec.dumps(slim(Published("node0", (found,), "/reports/incident-001")))
    assert len(data) < 4_000
    (verdict,) = codec.loads(Published, data, MAX).verdicts
    assert (verdict.culprits, verdict.headline) == ((3,), "Rank 3 was killed.")


def test_an_oversized_message_is_refused_unread() -> None:
    with pytest.raises(CodecError, match="more than"):
        codec.loads(Verdict, b"x" * (MAX_MESSAGE_BYTES + 1), MAX_MESSAGE_BYTES)


def changed(**values: Any) -> bytes:
    plain = orjson.loads(codec.dumps(snapshot()))
    return orjson.dumps({**plain, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"rank": "0"},
        {"rank": True},
        {"rank": 0.5},
        {"rank": None},
        {"phase": "flying"},
        {"ops": {}},
        {"ops": [7]},
        {"groups": [{"key": {"ranks": ["0"]}}]},
        {"process": {"alive": 1}},
        {"threads": [{"name": "x"}]},
        {"unheard_of": 1},
        {"node": "x" * (codec.MAX_TEXT + 1)},
    ],
)
def test_a_value_of_another_type_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        codec.loads(RankSnapshot, changed(**values), 1 << 30)


def test_a_missing_field_is_refused_and_one_with_a_default_is_not() -> None:
    plain = orjson.loads(codec.dumps(snapshot()))
    assert "handling" not in plain
    assert codec.decode(RankSnapshot, plain) == snapshot()
    assert codec.decode(RankSnapshot, {**plain, "handling": ""}) == snapshot()
    del plain["pid"]
    with pytest.raises(CodecError, match="lacks pid"):
        codec.decode(RankSnapshot, plain)


def test_whole_numbers_may_stand_for_floats() -> None:
    found = codec.loads(RankSnapshot, changed(gil_age_s=3), MAX)
    assert (found.gil_age_s, type(found.gil_age_s)) == (3.0, float)


def test_keys_that_are_numbers_come_back_as_numbers() -> None:
    assert codec.loads(dict[int, tuple[int, int]], b'{"3": [1, 2]}', MAX) == {3: (1, 2)}
    for bad in (b'{"x": [1, 2]}', b'{"3": [1]}', b'{"3": [1, 2, 3]}', b"[]"):
        with pytest.raises(CodecError):
            codec.loads(dict[int, tuple[int, int]], bad, MAX)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_in_our_own_words(data: bytes) -> None:
    with pytest.raises(CodecError):
        codec.loads(messages.Answer, data, MAX)


@given(JSON)
def test_random_json_is_refused_in_our_own_words(value: Any) -> None:
    with pytest.raises(CodecError):
        codec.decode(RankSnapshot, value)


@given(st.sampled_from(sorted(orjson.loads(codec.dumps(snapshot())))), JSON)
def test_any_field_may_be_anything_without_harm(name: str, value: Any) -> None:
    plain = {**orjson.loads(codec.dumps(snapshot())), name: value}
    try:
        found = codec.decode(RankSnapshot, plain)
    except CodecError:
        return
    assert isinstance(found, RankSnapshot)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(CodecError):
        codec.loads(messages.Answer, b"[" * 100_000 + b"]" * 100_000, MAX)
