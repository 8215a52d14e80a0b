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

from recording import WHY_PYTHON, Recording, only_python
from striking import struck_at

import hangwatch
from hangwatch.agent.inject.rank import identity
from hangwatch.agent.record.python_page import RING_EVENTS
from hangwatch.agent.record.python_recorder import PythonRecorder
from hangwatch.agent.record.recorder import Recorder, choose
from hangwatch.model.kinds import OpState

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

pytest_plugins = ["recorders"]


def test_both_recorders_have_all_that_the_agent_needs() -> None:
    native = choose({})
    wanted = {name for name in dir(Recorder) if not name.startswith("_")}
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


@only_python
def test_a_call_that_is_not_made_after_all_has_no_sequence_number(recording: Recording) -> None:
    recording.define()
    recording.end(recording.begin(seq=4))
    index = recording.begin(seq=5)
    for _ in range(2):
        recording.recorder.record_cancelled(index)
    group = recording.first_group
    assert (group.entered, group.left, group.enqueued) == (1, 1, 4)
    assert [event.seq for event in recording.page.events] == [4]


def test_an_exception_at_any_line_of_recording_leaves_the_other_calls_theirs(
    tmp_path: Path,
) -> None:
    line, struck = 0, True
    while struck:
        line += 1
        recording = Recording(PythonRecorder(WHY_PYTHON), tmp_path / f"{line}.page")
        recording.define()
        first = recording.begin(seq=1)
        second = partial(recording.begin, seq=2)
        struck = struck_at(line, ("record/python_page.py",), second)
        last = recording.begin(seq=3)
        recording.end(last, failed=True)
        recording.end(first)
        states = {event.seq: event.state for event in recording.page.events}
        assert (states[1], states[3]) == (OpState.DONE, OpState.FAILED), line
    assert line > 10


@only_python
def test_groups_for_which_a_page_is_too_small_are_told_by_their_first_members(
    recording: Recording,
) -> None:
    for slot in range(40):
        recording.define(slot, range(slot, slot + 5000), desc="mesh")
    groups = recording.page.groups
    assert len(groups) == 40
    assert {len(group.key.ranks) for group in groups} == {1024}
    assert groups[0].key.desc == "mesh (first 1024 of 5000 members)"


@only_python
def test_a_page_that_is_too_small_keeps_the_newest_calls(recording: Recording) -> None:
    recording.define(ranks=range(60_000))
    for seq in range(1, RING_EVENTS + 1):
        recording.begin(seq, op="x" * 1000)
    found = recording.page
    assert len(found.groups[0].key.ranks) == 60_000
    assert 0 < len(found.events) < RING_EVENTS
    assert found.events[-1].seq == RING_EVENTS


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


@only_python
def test_no_file_of_the_program_is_closed_with_the_page(recording: Recording) -> None:
    (own,) = (int(name) for name, path in _open_files() if path == str(recording.path))
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
