"""Which recorder serves, and what the one in Python writes."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hangwatch
from hangwatch.agent.call_site import known_prefixes
from hangwatch.agent.inject.rank import identity
from hangwatch.agent.record.python_page import RING_EVENTS
from hangwatch.agent.record.python_recorder import PythonRecorder
from hangwatch.agent.record.recorder import Recorder, choose
from hangwatch.agent.record.signature import Signature
from hangwatch.page.reader import parse_page
from hangwatch.types.calls import Site
from hangwatch.types.kinds import OpState, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from hangwatch.types.page import RankPage


class Page:
    """A recorder with a page, and its reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recorder = PythonRecorder("asked for by a test")
        known = known_prefixes()
        self.recorder.set_prefixes(known.internal, known.program)
        self.recorder.open_page(str(path), identity({}, 3, 8))

    def read(self) -> RankPage:
        """The page after a beat."""
        self.recorder.beat("", pending=False, pending_changed=False)
        return parse_page(self.path.read_bytes())


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "r0-3-1.page")


def begin(recorder: PythonRecorder, seq: int = 1, op: str = "all_gather_object") -> int:
    """A call in slot 0."""
    signature = Signature("float32", (2, 3), root=1)
    p2p = False
    return recorder.record_begin(0, op, "all_gather", seq, p2p, *signature)


def test_both_recorders_have_all_that_the_agent_needs() -> None:
    native = choose({})
    wanted = {name for name in vars(Recorder) if not name.startswith("_")}
    for recorder in (native, PythonRecorder("")):
        assert wanted <= set(dir(recorder))
    for name in wanted - {"MAX_GROUPS"}:
        expected = list(inspect.signature(getattr(Recorder, name)).parameters)[1:]
        assert list(inspect.signature(getattr(PythonRecorder(""), name)).parameters) == expected


def test_the_python_recorder_serves_where_it_is_asked_for() -> None:
    recorder: Any = choose({"HANGWATCH_RECORDER": "python"})
    assert isinstance(recorder, PythonRecorder)


def test_the_python_recorder_serves_where_the_native_one_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "hangwatch._native", None)
    monkeypatch.delattr(hangwatch, "_native", raising=False)
    broken = tmp_path / "_native.abi3.so"
    broken.write_text("no library")
    for environ in ({}, {"HANGWATCH_NATIVE": str(broken)}, {"HANGWATCH_NATIVE": "/gone.so"}):
        recorder: Any = choose(environ)
        assert isinstance(recorder, PythonRecorder)
        recorder.open_page(str(tmp_path / f"{len(environ)}{id(environ)}"), identity({}, 0, 1))
        reason = recorder._values["recorder_reason"]  # noqa: SLF001 (before it is in the page)
        assert reason.startswith("the native module cannot be loaded: ")


def test_a_new_page_says_who_it_is_and_why_it_is_in_python(page: Page) -> None:
    found = page.read()
    assert (found.identity.rank, found.identity.world_size) == (3, 8)
    assert found.identity.pid == os.getpid()
    assert (found.recorder, found.recorder_reason) == ("python", "asked for by a test")
    assert (found.phase, found.heartbeat_ns) == (Phase.BORN, 0)
    assert found.gil_ns > 0
    assert page.path.stat().st_mode & 0o777 == 0o600


def test_a_process_has_one_page(page: Page, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="already"):
        page.recorder.open_page(str(tmp_path / "other"), {})
    with pytest.raises(FileExistsError):
        PythonRecorder("").open_page(str(page.path), {})


def test_what_happens_to_the_rank_is_in_the_page_at_once(page: Page) -> None:
    page.recorder.set_identity(4, 9, "host", 29500)
    page.recorder.set_phase("init")
    page.recorder.set_in_call("new_group", "/a.py", 7, "main")
    page.recorder.set_exception("ValueError", "bad", "/a.py", 8, "main")
    page.recorder.set_disarmed("enough")
    found = parse_page(page.path.read_bytes())
    assert (found.identity.rank, found.identity.store_port) == (4, 29500)
    assert (found.phase, found.in_call) == (Phase.INIT, "new_group")
    assert found.in_call_site == Site("/a.py", 7, "main")
    assert found.exception is not None
    assert (found.exception.type, found.exception.message) == ("ValueError", "bad")
    assert found.disarmed == "enough"
    page.recorder.set_in_call("", "", 0, "")
    found = page.read()
    assert (found.in_call, found.in_call_ns, found.in_call_site) == ("", 0, None)


def test_what_a_call_has_raised_is_kept(page: Page) -> None:
    class Group:
        def _get_sequence_number_for_group(self) -> int:
            return 0

        def allreduce(self, text: str) -> None:
            raise ValueError(text)

    page.recorder.wrap_methods(Group, type("Work", (), {}), lambda _: 0)
    page.recorder.define_group(0, "0", "", (0, 1), 0, "gloo")
    assert page.recorder.last_thrown() == ("", "")
    with pytest.raises(ValueError, match="bad"):
        Group().allreduce("bad")
    assert page.recorder.last_thrown() == ("ValueError", "bad")


def test_pending_work_is_dated_from_when_it_last_changed(page: Page) -> None:
    def since(*, pending: bool, changed: bool) -> int:
        page.recorder.beat("", pending=pending, pending_changed=changed)
        return parse_page(page.path.read_bytes()).pending_since_ns

    first = since(pending=True, changed=True)
    assert since(pending=True, changed=False) == first > 0
    assert since(pending=True, changed=True) > first
    assert since(pending=False, changed=True) == 0


def test_a_call_that_is_not_made_after_all_has_no_place(page: Page) -> None:
    page.recorder.define_group(0, "1", "pair", (3, 5), 2, "cpu:gloo")
    page.recorder.record_end(begin(page.recorder, seq=4), failed=False)
    index = begin(page.recorder, seq=5)
    for _ in range(2):
        page.recorder.record_cancelled(index)
    found = page.read()
    (group,) = found.groups
    assert (group.entered, group.left, group.enqueued) == (1, 1, 4)
    assert [event.seq for event in found.events] == [4]


def test_a_call_goes_from_blocked_to_done(page: Page) -> None:
    page.recorder.define_group(0, "1", "pair", (3, 5), 2, "cpu:gloo")
    index = begin(page.recorder, seq=4)
    (event,) = page.read().events
    assert (event.op, event.wire, event.seq) == ("all_gather_object", "all_gather", 4)
    assert (event.dtype, event.shape, event.root) == ("float32", (2, 3), 1)
    assert event.state is OpState.BLOCKED
    assert event.site is not None
    assert (event.site.file, event.site.function) == (__file__, "begin")
    page.recorder.record_end(index, failed=False)
    page.recorder.record_end(index, failed=True)
    found = page.read()
    (group,) = found.groups
    assert found.events[0].state is OpState.DONE
    assert (group.key.ranks, group.key.desc, group.key.index) == ((3, 5), "pair", 2)
    assert (group.enqueued, group.entered, group.left) == (4, 1, 1)


def test_what_a_group_did_is_not_told_of_the_next_one_in_its_slot(page: Page) -> None:
    page.recorder.define_group(0, "1", "first", (3, 5), 0, "cpu:gloo")
    index = begin(page.recorder)
    page.recorder.retire_group(0)
    page.recorder.define_group(0, "2", "second", (3, 5), 0, "cpu:gloo")
    page.recorder.record_end(index, failed=False)
    found = page.read()
    assert found.events == ()
    assert [(group.key.desc, group.entered, group.left) for group in found.groups] == [
        ("second", 0, 0)
    ]


def test_an_asynchronous_call_blocks_only_who_waits_for_it(page: Page) -> None:
    class Work:
        pass

    page.recorder.define_group(0, "0", "", (0, 1), 0, "cpu:gloo")
    work = Work()
    page.recorder.record_issued(begin(page.recorder), work)
    assert page.read().events[0].state is OpState.ISSUED
    assert page.recorder.wait_begin(Work()) == -1
    index = page.recorder.wait_begin(work)
    assert page.read().events[0].state is OpState.BLOCKED
    page.recorder.record_end(index, failed=True)
    assert page.read().events[0].state is OpState.FAILED


def test_the_ring_holds_the_last_calls(page: Page) -> None:
    page.recorder.define_group(0, "0", "", (0, 1), 0, "cpu:gloo")
    first = begin(page.recorder, seq=1)
    for seq in range(2, RING_EVENTS + 10):
        begin(page.recorder, seq=seq)
    page.recorder.record_end(first, failed=False)
    events = page.read().events
    assert [event.seq for event in events] == list(range(10, RING_EVENTS + 10))
    assert {event.state for event in events} == {OpState.BLOCKED}


def test_an_exception_at_any_line_of_recording_leaves_the_other_calls_theirs(
    tmp_path: Path,
) -> None:
    line, struck = 0, True
    while struck:
        line += 1
        recorder = PythonRecorder("asked for by a test")
        recorder.open_page(str(tmp_path / f"{line}.page"), identity({}, 0, 1))
        recorder.define_group(0, "0", "", (0, 1), 0, "cpu:gloo")
        first = begin(recorder, seq=1)
        struck = _struck_at(line, partial(begin, recorder, seq=2))
        last = begin(recorder, seq=3)
        recorder.record_end(last, failed=True)
        recorder.record_end(first, failed=False)
        recorder.set_phase("running")
        page = parse_page((tmp_path / f"{line}.page").read_bytes())
        states = {event.seq: event.state for event in page.events}
        assert (states[1], states[3]) == (OpState.DONE, OpState.FAILED), line
    assert line > 10


def _struck_at(line: int, call: Callable[[], object]) -> bool:
    """Run it with an exception at the n-th line of the recorder; False if there are fewer."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("agent/record/python_page.py"):
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_groups_for_which_a_page_is_too_small_are_told_by_their_first_members(page: Page) -> None:
    for slot in range(40):
        ranks = range(slot, slot + 5000)
        assert page.recorder.define_group(slot, str(slot), "mesh", ranks, 0, "cpu:gloo")
    found = page.read()
    assert len(found.groups) == 40
    assert {len(group.key.ranks) for group in found.groups} == {1024}
    assert found.groups[0].key.desc == "mesh (first 1024 of 5000 members)"


def test_a_page_that_is_too_small_keeps_the_newest_calls(page: Page) -> None:
    page.recorder.define_group(0, "0", "", range(60_000), 0, "cpu:gloo")
    for seq in range(1, RING_EVENTS + 1):
        begin(page.recorder, seq, "x" * 1000)
    found = page.read()
    assert len(found.groups[0].key.ranks) == 60_000
    assert 0 < len(found.events) < RING_EVENTS
    assert found.events[-1].seq == RING_EVENTS


def test_a_forks_child_writes_nothing(page: Page) -> None:
    page.recorder.define_group(0, "0", "", (0, 1), 0, "cpu:gloo")
    page.recorder.set_phase("running")
    before = page.path.read_bytes()
    child = os.fork()
    if child == 0:
        page.recorder.set_phase("exited")
        os._exit(begin(page.recorder) + 1)
    assert os.waitpid(child, 0)[1] == 0
    assert page.path.read_bytes() == before


class Straggler:
    """Garbage that makes a call when it is found."""

    def __init__(self, events: dict[int, Any]) -> None:
        self.events, self.itself = events, self

    def __del__(self) -> None:
        self.events[len(self.events)] = {"slot": 1}


def test_a_finalizer_may_make_a_call_while_a_group_takes_a_slot_anew() -> None:
    recorder = PythonRecorder("")
    events = vars(recorder)["_events"]
    events.update({number: {"slot": number % 2} for number in range(4000)})
    before = gc.get_threshold()
    gc.collect()
    try:
        Straggler(events)
        gc.set_threshold(1000)  # reached by what is made for the 4,000, not before
        recorder.define_group(0, "0", "", (0, 1), 0, "cpu:gloo")
    finally:
        gc.set_threshold(*before)
    assert {event["slot"] for event in events.values()} == {1}


def test_no_file_of_the_program_is_closed_with_the_page(tmp_path: Path) -> None:
    page = Page(tmp_path / "r0-3-1.page")
    (own,) = (int(name) for name, path in _open_files() if path == str(page.path))
    os.close(own)  # as a program does that closes all but its own
    with open(os.devnull, "rb") as null:  # noqa: PTH123 (a descriptor is what is wanted)
        file = os.dup2(null.fileno(), own)
    child = os.fork()
    if child == 0:  # where the recorder lets go of its page
        os._exit(int(str(Path(f"/proc/self/fd/{file}").readlink()) != os.devnull))
    assert os.waitpid(child, 0)[1] == 0
    os.close(file)


def _open_files() -> Iterator[tuple[str, str]]:
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            yield link.name, str(link.readlink())
