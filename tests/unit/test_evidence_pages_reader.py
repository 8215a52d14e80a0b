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
import recording as by
from fake_torch import Group
from recording import IDENTITY, WHY_PYTHON, only_native
from waiting import until

from hangwatch import _native
from hangwatch.agent.record.python_page import MARKS
from hangwatch.errors import PageError
from hangwatch.evidence.pages.reader import parse_page
from hangwatch.model import json_page
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import ExceptionRecord, Identity, RankPage

if TYPE_CHECKING:
    from pathlib import Path

    from recording import Recording

pytest_plugins = ["recorders"]


def test_identity_and_times_are_told_from_the_start(recording: Recording) -> None:
    before = time.monotonic_ns()
    page = recording.now
    assert page.identity == Identity(**IDENTITY)
    assert (page.recorder, page.recorder_reason) == (
        ("native", "") if recording.native else ("python", WHY_PYTHON)
    )
    assert page.disarmed == page.in_call == ""
    assert page.phase is Phase.BORN
    assert 0 < page.created_ns <= before
    assert 0 < page.phase_ns <= before
    assert page.created_ns <= page.phase_ns or not recording.native
    assert page.heartbeat_ns == 0
    assert page.exception is None
    assert page.groups == ()
    assert page.events == ()


def test_identity_is_completed_when_the_store_is_known(recording: Recording) -> None:
    recording.recorder.set_identity(7, 32, "10.9.9.9", 1234)
    identity = recording.now.identity
    assert (identity.rank, identity.world_size) == (7, 32)
    assert (identity.store_host, identity.store_port) == ("10.9.9.9", 1234)
    assert identity.host == "node-7"


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_its_name(recording: Recording, phase: Phase) -> None:
    recording.recorder.set_phase(phase.value)
    assert recording.now.phase is phase


@only_native
def test_an_unknown_phase_is_refused(recording: Recording) -> None:
    before = recording.path.read_bytes()
    with pytest.raises(ValueError, match="no such phase: sleeping"):
        _native.set_phase("sleeping")
    assert recording.path.read_bytes() == before


def test_a_blocking_call_is_told_until_it_returns(recording: Recording) -> None:
    recording.recorder.set_in_call("new_group", "/home/me/train.py", 12, "main")
    page = recording.now
    assert page.in_call == "new_group"
    assert page.in_call_site == Site("/home/me/train.py", 12, "main")
    assert page.in_call_ns >= page.created_ns
    recording.recorder.set_in_call("", "", 0, "")
    page = recording.now
    assert (page.in_call, page.in_call_ns, page.in_call_site) == ("", 0, None)


def test_the_last_calls_of_new_group_are_kept(recording: Recording) -> None:
    for number in range(1, 41):
        recording.recorder.add_new_group(number, [0, 1, 2, 8], "/home/me/train.py", 12, "main")
    page = recording.now
    assert [call.index for call in page.new_groups] == list(range(8, 40))
    assert [call.number for call in page.new_groups] == list(range(9, 41))
    last = page.new_groups[-1]
    assert (last.ranks, last.site) == ((0, 1, 2, 8), Site("/home/me/train.py", 12, "main"))
    assert last.ns >= page.created_ns


def test_a_mark_keeps_its_last_count(recording: Recording) -> None:
    for count in (1, 2):
        recording.recorder.set_mark(0, "no_sync", "", count, "/home/me/train.py", 14, "step")
    recording.recorder.set_mark(1, "thread_died", "x" * 500, 1, "/home/me/train.py", 15, "fill")
    recording.recorder.set_mark(MARKS, "no_sync", "", 1, "/home/me/train.py", 16, "step")
    page = recording.now
    assert [(mark.kind, mark.count, mark.site) for mark in page.marks] == [
        ("no_sync", 2, Site("/home/me/train.py", 14, "step")),
        ("thread_died", 1, Site("/home/me/train.py", 15, "fill")),
    ]
    assert page.marks[1].text.startswith("x" * 200)
    assert page.marks[0].ns >= page.created_ns


@only_native
def test_members_of_a_group_that_do_not_fit_are_not_known(recording: Recording) -> None:
    irregular = [rank * rank for rank in range(1000)]
    recording.recorder.add_new_group(1, irregular, "/home/me/train.py", 12, "main")
    (call,) = recording.now.new_groups
    assert (call.number, call.ranks) == (1, ())


@pytest.mark.parametrize(
    ("recorder", "message", "file", "kept", "kept_file"),
    [
        *((recorder, "bad", "/a.py", "bad", "/a.py") for recorder in ("native", "python")),
        ("native", "é" * 2000, "/a\udcff.py", "é" * 512, "/a?.py"),  # cut to its room
    ],
    indirect=["recorder"],
)
def test_an_exception_is_kept(
    recording: Recording, message: str, file: str, kept: str, kept_file: str
) -> None:
    recording.recorder.set_exception("ValueError", message, file, 3, "step")
    exception = recording.now.exception
    assert exception is not None
    assert exception == ExceptionRecord(
        "ValueError", kept, Site(kept_file, 3, "step"), exception.at_ns
    )


def test_beats_tell_what_is_handled_and_since_when_work_is_pending(recording: Recording) -> None:
    def beat(*values: Any) -> RankPage:
        recording.recorder.beat(*values)
        return recording.now

    idle = beat("", False, False)
    assert (idle.handling, idle.pending_since_ns) == ("", 0)
    assert idle.gil_ns > 0
    first = beat("KeyError", True, False)
    assert first.handling == "KeyError"
    assert first.gil_ns > idle.gil_ns
    assert first.pending_since_ns == first.gil_ns
    same = beat("KeyError", True, False)
    assert same.pending_since_ns == first.pending_since_ns
    other = beat("", True, True)
    assert other.pending_since_ns == other.gil_ns > first.pending_since_ns
    assert beat("", False, True).pending_since_ns == 0


@only_native
def test_the_heartbeat_needs_no_gil(recording: Recording) -> None:
    _native.start_heartbeat(1)
    _native.start_heartbeat(1)
    with recording.path.open("rb") as file:
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


def test_a_group_is_told_with_its_members_in_order(recording: Recording) -> None:
    ranks = [8, 0, 4, 12, 13, 14]
    assert recording.recorder.define_group(3, "9", "tp", ranks, 2, "gloo")
    (group,) = recording.page.groups
    assert group.key == GroupKey((8, 0, 4, 12, 13, 14), "tp", 2)
    assert (group.slot, group.name, group.backend, group.alive) == (3, "9", "gloo", True)
    recording.recorder.retire_group(3)
    (group,) = recording.page.groups
    assert not group.alive


@only_native
def test_late_samples_take_nothing_back(recording: Recording) -> None:
    group = recording.group()
    group.number = 17
    assert recording.last_seq(group, 16) == 17
    group.number = 15
    assert recording.last_seq(group, 12) == 15
    assert (recording.first_group.enqueued, recording.first_group.completed) == (17, 16)


def test_what_a_group_did_is_not_told_of_the_next_one_in_its_slot(recording: Recording) -> None:
    recording.define(desc="first")
    index = recording.begin()
    recording.recorder.retire_group(0)
    recording.define(desc="second")
    recording.end(index)
    found = recording.page
    assert found.events == ()
    assert [(group.key.desc, group.entered, group.left) for group in found.groups] == [
        ("second", 0, 0)
    ]


def test_a_world_of_ten_thousand_fits(recording: Recording) -> None:
    recording.define(0, range(10_000), desc="default_pg")
    recording.define(1, range(7, 10_000, 8), desc="dp")
    world, replicas = recording.page.groups
    assert world.key == GroupKey(tuple(range(10_000)), "default_pg", 0)
    assert replicas.key.ranks == tuple(range(7, 10_000, 8))


@only_native
def test_members_that_do_not_fit_are_told_to_be_missing(recording: Recording) -> None:
    ranks = [rank * rank for rank in range(1000)]
    recording.define(ranks=ranks, desc="odd")
    key = recording.first_group.key
    known = len(key.ranks)
    assert 0 < known < 1000
    assert list(key.ranks) == ranks[:known]
    assert key.desc == f"odd (first {known} of 1000 members)"


@only_native
@pytest.mark.parametrize("slot", [-1, _native.MAX_GROUPS])
def test_a_slot_out_of_range_is_refused(recording: Recording, slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot}: use 0 to {_native.MAX_GROUPS - 1}"):
        recording.define(slot)
    assert recording.page.groups == ()


def test_an_event_is_blocked_until_it_ends(recording: Recording) -> None:
    recording.define(backend="other")
    index = recording.begin(seq=4, root=1)
    (event,) = recording.page.events
    assert (event.op, event.wire, event.seq) == ("all_gather_object", "all_gather", 4)
    assert (event.dtype, event.shape, event.root) == ("uint8", (5, 2), 1)
    assert event.state is OpState.BLOCKED
    assert event.issued_ns == event.blocked_ns > 0
    assert event.thread == os.getpid()
    assert event.site is not None
    assert (event.site.file, event.site.function) == (by.__file__, "begin")
    recording.end(index)
    recording.end(index, failed=True)  # has ended already
    page = recording.page
    assert page.events[0].state is OpState.DONE
    assert page.events[0].done_ns >= event.issued_ns
    (group,) = page.groups
    assert (group.enqueued, group.entered, group.left, group.p2p) == (4, 1, 1, 0)


def test_a_call_that_raised_has_failed(recording: Recording) -> None:
    recording.define()
    recording.end(recording.begin(), failed=True)
    assert recording.last.state is OpState.FAILED


def test_sends_are_counted_apart(recording: Recording) -> None:
    recording.define()
    recording.end(recording.begin(p2p=True, peer=1, tag=7, wire="send"))
    assert (recording.last.p2p, recording.last.peer, recording.last.tag) == (True, 1, 7)
    group = recording.first_group
    assert (group.enqueued, group.entered, group.left, group.p2p) == (0, 0, 0, 1)


def test_the_ring_keeps_the_last_events_oldest_first(recording: Recording) -> None:
    recording.define()
    first = recording.begin()
    for seq in range(2, 1001):
        recording.end(recording.begin(seq))
    before = recording.page
    assert [event.seq for event in before.events] == list(range(745, 1001))
    assert parse_page(recording.path.read_bytes(), events=False).events == ()
    recording.end(first, failed=True)  # too late to be told
    assert (recording.page.events, recording.page.groups) == (before.events, before.groups)


def test_nothing_is_recorded_of_an_unknown_slot_or_when_disarmed(recording: Recording) -> None:
    assert recording.begin(slot=9) == -1
    recording.define()
    recording.recorder.disarm()
    assert recording.begin() == -1
    recording.end(-1)
    assert recording.page.events == ()
    recording.recorder.set_disarmed("too many errors")
    assert recording.now.disarmed == "too many errors"


def test_what_the_torch_of_the_rank_lacks_is_on_its_page(recording: Recording) -> None:
    assert recording.now.torch_lacks == ""
    recording.recorder.set_torch_lacks("calls of gather_all are not seen")
    assert recording.now.torch_lacks == "calls of gather_all are not seen"


def test_what_is_swallowed_is_counted(recording: Recording) -> None:
    assert [recording.recorder.count_swallowed() for _ in range(2)] == [1, 2]
    assert recording.page.swallowed == 2


def test_one_process_has_one_page(recording: Recording, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="has a rank page already"):
        recording.recorder.open_page(str(tmp_path / "other.page"), IDENTITY)
    stat = recording.path.stat()
    assert stat.st_size == (_native.PAGE_BYTES if recording.native else json_page.PAGE_BYTES)
    assert stat.st_mode & 0o777 == 0o600


def test_a_name_that_is_taken_or_nowhere_is_an_os_error(recorder: Any, tmp_path: Path) -> None:
    taken = tmp_path / "taken.page"
    taken.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        recorder.open_page(str(taken), IDENTITY)
    assert taken.read_bytes() == b"mine"
    link = tmp_path / "link.page"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        recorder.open_page(str(link), IDENTITY)
    with pytest.raises(FileNotFoundError):
        recorder.open_page(str(tmp_path / "no" / "x.page"), IDENTITY)


def test_without_a_page_everything_does_nothing() -> None:
    _native.set_phase("running")
    _native.set_in_call("x", "y", 1, "z")
    _native.beat("", True, True)
    _native.define_group(0, "0", "", [0], 0, "gloo")
    assert _native.sample_number(0, Group(), 1) == -1
    _native.start_heartbeat(1)
    _native.stop_heartbeat()
    assert _native.record_begin(0, "barrier", "barrier", 3, False, "", (), -1, -1, 0, False) == -1
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


def test_a_forked_child_writes_nothing(recording: Recording) -> None:
    recording.define()
    recording.recorder.set_phase("running")
    before = recording.path.read_bytes()
    child = os.fork()
    if child == 0:
        recording.recorder.set_phase("raised")
        recording.recorder.beat("KeyError", True, True)
        counted = recording.native and recording.recorder.count_swallowed()
        os._exit(0 if recording.begin() == -1 and not counted else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert recording.path.read_bytes() == before
    assert recording.begin() == 0


def json_container(values: dict[str, Any]) -> bytearray:
    page = bytearray(json_page.PAGE_BYTES)
    json_page.write(page, 1, json_page.encode(values))
    return page


@only_native
def test_fields_with_a_default_may_be_missing_and_unknown_ones_are_ignored(
    recording: Recording,
) -> None:
    values = _native.read_page(recording.path.read_bytes())
    del values["identity"]["restart"]
    values["new"] = 1
    assert parse_page(json_container(values)).identity.restart == 0


@only_native
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
def test_values_of_another_kind_are_named(
    recording: Recording, change: dict[str, Any], message: str
) -> None:
    values = _native.read_page(recording.path.read_bytes()) | change
    with pytest.raises(PageError, match=message):
        parse_page(json_container(values))


@only_native
def test_a_page_of_another_version_is_named(recording: Recording) -> None:
    page = bytearray(recording.path.read_bytes())
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


@only_native
def test_a_native_page_without_the_native_module_says_what_to_do(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hangwatch._native", None)
    monkeypatch.delattr("hangwatch._native")
    with pytest.raises(PageError, match="install hangwatch where a C\\+\\+ compiler is found"):
        parse_page(recording.path.read_bytes())
    values = json.loads(json.dumps(_native.read_page(recording.path.read_bytes())))
    assert parse_page(json_container(values)).identity.rank == 5
