"""A page reads as it was written, by either recorder."""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from waiting import until

from hangwatch import _native
from hangwatch.errors import PageError
from hangwatch.page import json_page
from hangwatch.page.reader import parse_page
from hangwatch.types.calls import GroupKey, Site
from hangwatch.types.kinds import OpState, Phase
from hangwatch.types.page import ExceptionRecord, Identity, RankPage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDENTITY: dict[str, Any] = {
    "pid": 4711,
    "start_ticks": 99,
    "rank": 5,
    "world_size": 16,
    "local_rank": 1,
    "local_world_size": 4,
    "restart": 2,
    "host": "node-7",
    "store_host": "10.0.0.1",
    "store_port": 29500,
    "run_id": "run-1",
    "program": "/opt/site-packages/company/",
}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The open page of this process."""
    path = tmp_path / "r2-5-4711.page"
    _native.open_page(str(path), IDENTITY)
    yield path
    _native.close_page()


def begin(slot: int = 0, seq: int = 1, **changes: Any) -> int:
    values: dict[str, Any] = {
        "op": "all_gather_object",
        "wire": "all_gather",
        "seq": seq,
        "p2p": False,
        "dtype": "uint8",
        "shape": [5, 2],
        "root": -1,
        "peer": -1,
        "tag": 0,
        "is_async": False,
    }
    return _native.record_begin(slot, *(values | changes).values())


def test_identity_and_times_are_told_from_the_start(path: Path) -> None:
    before = time.monotonic_ns()
    page = parse_page(path.read_bytes())
    assert page.identity == Identity(**IDENTITY)
    assert page.recorder == "native"
    assert page.recorder_reason == page.disarmed == page.in_call == ""
    assert page.phase is Phase.BORN
    assert 0 < page.created_ns <= page.phase_ns <= before
    assert page.exception is None
    assert page.groups == ()
    assert page.events == ()


def test_identity_is_completed_when_the_store_is_known(path: Path) -> None:
    _native.set_identity(7, 32, "10.9.9.9", 1234)
    identity = parse_page(path.read_bytes()).identity
    assert (identity.rank, identity.world_size) == (7, 32)
    assert (identity.store_host, identity.store_port) == ("10.9.9.9", 1234)
    assert identity.host == "node-7"


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_its_name(path: Path, phase: Phase) -> None:
    _native.set_phase(phase.value)
    assert parse_page(path.read_bytes()).phase is phase


def test_an_unknown_phase_is_refused(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="no such phase: sleeping"):
        _native.set_phase("sleeping")
    assert path.read_bytes() == before


def test_a_blocking_call_is_told_until_it_returns(path: Path) -> None:
    _native.set_in_call("new_group", "/home/me/train.py", 12, "main")
    page = parse_page(path.read_bytes())
    assert page.in_call == "new_group"
    assert page.in_call_site == Site("/home/me/train.py", 12, "main")
    assert page.in_call_ns >= page.created_ns
    _native.set_in_call("", "", 0, "")
    page = parse_page(path.read_bytes())
    assert (page.in_call, page.in_call_ns, page.in_call_site) == ("", 0, None)


def test_an_exception_is_kept_and_cut_to_its_room(path: Path) -> None:
    _native.set_exception("ValueError", "é" * 2000, "/a\udcff.py", 3, "step")
    exception = parse_page(path.read_bytes()).exception
    assert exception is not None
    assert exception == ExceptionRecord(
        "ValueError", "é" * 512, Site("/a?.py", 3, "step"), exception.at_ns
    )


def test_beats_tell_what_is_handled_and_since_when_work_is_pending(path: Path) -> None:
    def beat(*values: Any) -> RankPage:
        _native.beat(*values)
        return parse_page(path.read_bytes())

    idle = beat("", False, False)
    assert (idle.handling, idle.pending_since_ns) == ("", 0)
    first = beat("KeyError", True, False)
    assert first.handling == "KeyError"
    assert first.gil_ns > idle.gil_ns
    assert first.pending_since_ns == first.gil_ns
    same = beat("KeyError", True, False)
    assert same.pending_since_ns == first.pending_since_ns
    other = beat("", True, True)
    assert other.pending_since_ns == other.gil_ns > first.pending_since_ns


def test_the_heartbeat_needs_no_gil(path: Path) -> None:
    assert parse_page(path.read_bytes()).heartbeat_ns == 0
    _native.start_heartbeat(1)
    _native.start_heartbeat(1)
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    offset = 3 * 8
    (first,) = struct.unpack_from("=Q", memory, offset)
    # One call that keeps the GIL for a while, and long enough for several beats.

    def beats() -> bool:
        sum(range(1_000_000))
        return bool(struct.unpack_from("=Q", memory, offset)[0] != first)

    until(beats, "the heart to beat", poll_s=0)
    assert parse_page(memory).heartbeat_ns > first
    _native.stop_heartbeat()
    stopped = parse_page(memory).heartbeat_ns
    sum(range(1_000_000))
    assert parse_page(memory).heartbeat_ns == stopped


def test_a_group_is_told_with_its_members_in_order(path: Path) -> None:
    _native.define_group(3, "9", "tp", [8, 0, 4, 12, 13, 14], 2, "gloo")
    _native.sample_group(3, 17, 16)
    _native.sample_group(3, 15, 12)  # late samples take nothing back
    (group,) = parse_page(path.read_bytes()).groups
    assert group.key == GroupKey((8, 0, 4, 12, 13, 14), "tp", 2)
    assert (group.slot, group.name, group.backend) == (3, "9", "gloo")
    assert (group.enqueued, group.completed, group.alive) == (17, 16, True)
    _native.retire_group(3)
    (group,) = parse_page(path.read_bytes()).groups
    assert not group.alive


def test_a_world_of_ten_thousand_fits(path: Path) -> None:
    _native.define_group(0, "0", "default_pg", range(10_000), 0, "nccl")
    _native.define_group(1, "1", "dp", range(7, 10_000, 8), 0, "nccl")
    world, replicas = parse_page(path.read_bytes()).groups
    assert world.key == GroupKey(tuple(range(10_000)), "default_pg", 0)
    assert replicas.key.ranks == tuple(range(7, 10_000, 8))


def test_members_that_do_not_fit_are_told_to_be_missing(path: Path) -> None:
    ranks = [rank * rank for rank in range(1000)]
    _native.define_group(0, "0", "odd", ranks, 0, "nccl")
    (group,) = parse_page(path.read_bytes()).groups
    known = len(group.key.ranks)
    assert 0 < known < 1000
    assert list(group.key.ranks) == ranks[:known]
    assert group.key.desc == f"odd (first {known} of 1000 members)"


@pytest.mark.parametrize("slot", [-1, _native.MAX_GROUPS])
def test_a_slot_out_of_range_is_refused(path: Path, slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot}: use 0 to {_native.MAX_GROUPS - 1}"):
        _native.define_group(slot, "0", "", [0], 0, "gloo")
    assert parse_page(path.read_bytes()).groups == ()


def test_an_event_is_blocked_until_it_ends(path: Path) -> None:
    _native.define_group(0, "0", "", [0, 1], 0, "other")
    index = begin(seq=4)
    (event,) = parse_page(path.read_bytes()).events
    assert (event.op, event.wire, event.seq) == ("all_gather_object", "all_gather", 4)
    assert (event.dtype, event.shape) == ("uint8", (5, 2))
    assert event.state is OpState.BLOCKED
    assert event.issued_ns == event.blocked_ns > 0
    assert event.thread == os.getpid()
    assert event.site is not None
    assert (event.site.file, event.site.function) == (__file__, "begin")
    _native.record_end(index, False)
    page = parse_page(path.read_bytes())
    assert page.events[0].state is OpState.DONE
    assert page.events[0].done_ns >= event.issued_ns
    (group,) = page.groups
    assert (group.enqueued, group.entered, group.left, group.p2p) == (4, 1, 1, 0)


def test_a_call_that_raised_has_failed(path: Path) -> None:
    _native.define_group(0, "0", "", [0, 1], 0, "other")
    _native.record_end(begin(), True)
    assert parse_page(path.read_bytes()).events[0].state is OpState.FAILED


def test_sends_are_counted_apart(path: Path) -> None:
    _native.define_group(0, "0", "", [0, 1], 0, "other")
    _native.record_end(begin(p2p=True, peer=1, tag=7, wire="send"), False)
    page = parse_page(path.read_bytes())
    assert (page.events[0].p2p, page.events[0].peer, page.events[0].tag) == (True, 1, 7)
    (group,) = page.groups
    assert (group.enqueued, group.entered, group.left, group.p2p) == (0, 0, 0, 1)


def test_the_ring_keeps_the_last_events_oldest_first(path: Path) -> None:
    _native.define_group(0, "0", "", [0, 1], 0, "other")
    for seq in range(1, 1001):
        _native.record_end(begin(seq=seq), False)
    events = parse_page(path.read_bytes()).events
    assert [event.seq for event in events] == list(range(745, 1001))
    assert parse_page(path.read_bytes(), events=False).events == ()


def test_an_end_that_comes_after_the_ring_went_on_changes_nothing(path: Path) -> None:
    _native.define_group(0, "0", "", [0, 1], 0, "other")
    first = begin()
    for _ in range(300):
        begin()
    before = path.read_bytes()
    _native.record_end(first, True)
    assert path.read_bytes() == before


def test_nothing_is_recorded_of_an_unknown_slot_or_when_disarmed(path: Path) -> None:
    assert begin(slot=9) == -1
    _native.define_group(0, "0", "", [0, 1], 0, "other")
    _native.disarm()
    assert begin() == -1
    _native.record_end(-1, False)
    _native.set_disarmed("too many errors")
    page = parse_page(path.read_bytes())
    assert page.events == ()
    assert page.disarmed == "too many errors"


def test_what_the_torch_of_the_rank_lacks_is_on_its_page(path: Path) -> None:
    assert parse_page(path.read_bytes()).torch_lacks == ""
    _native.set_torch_lacks("calls of gather_all are not seen")
    assert parse_page(path.read_bytes()).torch_lacks == "calls of gather_all are not seen"


def test_what_is_swallowed_is_counted(path: Path) -> None:
    assert [_native.count_swallowed(), _native.count_swallowed()] == [1, 2]
    assert parse_page(path.read_bytes()).swallowed == 2


def test_one_process_has_one_page(path: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="has a rank page already"):
        _native.open_page(str(tmp_path / "other.page"), IDENTITY)
    assert path.stat().st_size == _native.PAGE_BYTES
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_name_that_is_taken_or_nowhere_is_an_os_error(tmp_path: Path) -> None:
    taken = tmp_path / "taken.page"
    taken.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        _native.open_page(str(taken), IDENTITY)
    assert taken.read_bytes() == b"mine"
    link = tmp_path / "link.page"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        _native.open_page(str(link), IDENTITY)
    with pytest.raises(FileNotFoundError):
        _native.open_page(str(tmp_path / "no" / "x.page"), IDENTITY)


def test_without_a_page_everything_does_nothing() -> None:
    _native.set_phase("running")
    _native.set_in_call("x", "y", 1, "z")
    _native.beat("", True, True)
    _native.define_group(0, "0", "", [0], 0, "gloo")
    _native.sample_group(0, 1, 1)
    _native.start_heartbeat(1)
    _native.stop_heartbeat()
    assert begin() == -1
    assert _native.count_swallowed() == 0


def test_a_page_survives_kill_minus_nine(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from hangwatch import _native as n\n"
        "n.open_page(sys.argv[1], {'pid': os.getpid(), 'rank': 1, 'world_size': 2})\n"
        "n.start_heartbeat(10)\n"
        "n.define_group(0, '0', 'default_pg', [0, 1], 0, 'gloo')\n"
        "n.record_begin(0, 'barrier', 'barrier', 3, False, '', (), -1, -1, 0, False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "killed.page"
    done = subprocess.run([sys.executable, "-c", program, path], check=False, timeout=60)  # noqa: S603
    assert done.returncode == -9
    (event,) = parse_page(path.read_bytes()).events
    assert (event.op, event.seq, event.state) == ("barrier", 3, OpState.BLOCKED)


def test_a_forked_child_writes_nothing(path: Path) -> None:
    _native.define_group(0, "0", "", [0], 0, "other")
    before = path.read_bytes()
    child = os.fork()
    if child == 0:
        _native.set_phase("raised")
        _native.beat("KeyError", True, True)
        silent = begin() == -1 and _native.count_swallowed() == 0
        os._exit(0 if silent else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_bytes() == before
    assert begin() == 0


def test_the_python_recorders_page_is_read_by_its_own_magic(path: Path) -> None:
    _native.define_group(0, "0", "", [0, 1], 0, "other")
    begin()
    values = _native.read_page(path.read_bytes())
    values |= {"recorder": "python", "recorder_reason": "no compiler"}
    page = parse_page(json_container(values))
    assert page.recorder == "python"
    assert page.recorder_reason == "no compiler"
    assert page.events == parse_page(path.read_bytes()).events
    assert parse_page(json_container(values), events=False).events == ()


def json_container(values: dict[str, Any]) -> bytearray:
    page = bytearray(json_page.PAGE_BYTES)
    json_page.write(page, 1, json_page.encode(values))
    return page


def test_fields_with_a_default_may_be_missing_and_unknown_ones_are_ignored(path: Path) -> None:
    values = _native.read_page(path.read_bytes())
    del values["identity"]["restart"]
    values["new"] = 1
    assert parse_page(json_container(values)).identity.restart == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": "asleep"}, "'asleep' is no Phase"),
        ({"phase_ns": "soon"}, "'soon' is no 64-bit integer"),
        ({"phase_ns": True}, "True is no 64-bit integer"),
        ({"phase_ns": 2**64}, "is no 64-bit integer"),
        ({"groups": {}}, "a dict of 0 is no list"),
        ({"identity": {}}, "Identity lacks pid, rank, start_ticks, world_size"),
        ({"groups": [{"truncated": True}]}, "PageGroup lacks key, name, slot"),
        ({"in_call": None}, "None is no str"),
    ],
)
def test_values_of_another_kind_are_named(path: Path, change: dict[str, Any], message: str) -> None:
    values = _native.read_page(path.read_bytes()) | change
    with pytest.raises(PageError, match=message):
        parse_page(json_container(values))


def test_a_page_of_another_version_is_named(path: Path) -> None:
    page = bytearray(path.read_bytes())
    struct.pack_into("=Q", page, 8, 99)
    with pytest.raises(PageError, match=f"version 99, .* version {_native.PAGE_VERSION}"):
        parse_page(page)


@pytest.mark.parametrize("data", [b"", b"short", bytes(100), b"\xff" * 5000])
def test_what_is_no_page_is_named(data: bytes) -> None:
    with pytest.raises(PageError, match="not a rank page"):
        parse_page(data)


def test_what_is_no_buffer_is_named() -> None:
    with pytest.raises(PageError, match="bytes-like object is required"):
        parse_page("text")


def test_a_native_page_without_the_native_module_says_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hangwatch._native", None)
    monkeypatch.delattr("hangwatch._native")
    with pytest.raises(PageError, match="install hangwatch where a C\\+\\+ compiler is found"):
        parse_page(path.read_bytes())
    values = json.loads(json.dumps(_native.read_page(path.read_bytes())))
    assert parse_page(json_container(values)).identity.rank == 5
