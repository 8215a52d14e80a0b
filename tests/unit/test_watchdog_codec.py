"""What watchdogs send each other, and what they accept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangwatch.types import (
    Child,
    Frame,
    GroupKey,
    GroupProgress,
    OpRecord,
    OpState,
    Phase,
    ProcessState,
    RankSnapshot,
    Site,
    ThreadStack,
    Verdict,
)
from hangwatch.watchdog import codec, messages
from hangwatch.watchdog.codec import CodecError
from hangwatch.watchdog.messages import MAX_MESSAGE_BYTES, Local, pack, unpack

MAX = 1 << 20
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
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
    )


def send(local: Local) -> tuple[Local, dict[str, bytes]]:
    message, blobs = pack("node0:1", local)
    node, found = unpack(message, lambda names: {n: blobs[n] for n in names if n in blobs})
    assert node == "node0:1"
    return found, blobs


def test_a_snapshot_arrives_as_it_was() -> None:
    local = Local((snapshot(0), snapshot(1)), {"/job/train.py": "import torch\n"}, ("no store",))
    assert send(local)[0] == local


def test_equal_stacks_travel_once() -> None:
    _, blobs = send(Local(tuple(snapshot(rank) for rank in range(50))))
    assert len(blobs) == 2  # the ranks' and their data workers'


def test_a_stack_that_is_lost_on_the_way_leaves_a_gap() -> None:
    message, _ = pack("node0:1", Local((snapshot(),)))
    _, found = unpack(message, lambda _: {})
    assert found.ranks[0].threads == (replace(stack(), frames=()),)


def test_no_stack_and_an_empty_one_stay_apart() -> None:
    local = Local((replace(snapshot(), threads=None), replace(snapshot(1), threads=())))
    assert [rank.threads for rank in send(local)[0].ranks] == [None, ()]


def test_a_long_history_is_shortened_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 40_000)
    found, _ = send(Local((snapshot(ops=500),)))
    assert [op.seq for op in found.ranks[0].ops] == list(range(437, 501))


def test_what_does_not_fit_at_all_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 1000)
    assert send(Local(tuple(snapshot(rank) for rank in range(50))))[0] == Local(())


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
    del plain["handling"]
    assert codec.decode(RankSnapshot, plain) == snapshot()
    del plain["pid"]
    with pytest.raises(CodecError, match="without pid"):
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
