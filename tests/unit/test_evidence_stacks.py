"""Stacks of other processes, by the real py-spy."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from waiting import in_time, until

from hangwatch.errors import EvidenceError
from hangwatch.evidence.processes import command_line, read_stat
from hangwatch.evidence.stacks import (
    RATE_HZ,
    NoStacksError,
    PySpy,
    is_whole,
    parse,
    parse_profile,
    refusal,
)
from hangwatch.model.profile import StackSamples
from hangwatch.model.snapshot import Frame, ThreadStack
from hangwatch.settings.config import Stacks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import time
def innermost():
    print(1, flush=True)
    time.sleep(600)
def outer():
    innermost()
outer()
"""


@contextmanager
def program(code: str = PROGRAM) -> Iterator[int]:
    """The pid of a Python process that has printed a line and then gone to sleep."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:  # noqa: S603 (our own Python)
        assert child.stdout is not None
        child.stdout.readline()
        try:
            until_state(child.pid, "S")
            yield child.pid
        finally:
            child.kill()


def dump(spy: PySpy, pid: int, timeout_s: float | None = None) -> tuple[ThreadStack, ...]:
    return asyncio.run(spy.dump(pid, timeout_s))


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def state_of(pid: int) -> str:
    stat = read_stat(pid)
    return stat.state if stat else ""


def until_state(pid: int, state: str) -> None:
    until(lambda: state_of(pid) == state, f"state {state}")


def test_a_stack_is_read_innermost_first() -> None:
    with program() as pid:
        (thread,) = dump(PySpy(Stacks.PYTHON), pid)
    assert [frame.function for frame in thread.frames] == ["innermost", "outer", "<module>"]
    assert (thread.name, thread.tid, thread.frames[0].line) == ("MainThread", pid, 5)
    assert is_whole((thread,), pid)


def test_a_native_stack_goes_deeper() -> None:
    with program() as pid:
        threads = dump(PySpy(Stacks.NATIVE), pid)
        assert any(frame.function == "innermost" for frame in threads[0].frames)
        assert state_of(pid) == "S"


@pytest.mark.parametrize("mode", [Stacks.PYTHON, Stacks.NATIVE])
def test_a_stopped_process_is_read_and_stays_stopped(mode: Stacks) -> None:
    with program() as pid:
        os.kill(pid, signal.SIGSTOP)
        until_state(pid, "T")
        (thread,) = dump(PySpy(mode), pid)
        assert state_of(pid) == "T"
    assert thread.frames[0].function == "innermost"


def test_a_rank_whose_native_code_holds_the_gil_is_read_and_shown_so() -> None:
    code = "import ctypes, sys\nprint(1, flush=True)\nctypes.PyDLL(None).usleep(600_000_000)\n"
    with program(code) as pid:
        (thread,) = dump(PySpy(Stacks.PYTHON), pid)
    assert thread.owns_gil
    assert thread.frames[0].line == 3


def record(spy: PySpy, pid: int, directory: Path) -> tuple[StackSamples, ...]:
    return asyncio.run(spy.record(pid, 1, directory))


def test_a_process_is_sampled_with_its_children_and_runs_on(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "def works():\n"
        "    print(1, flush=True)\n"
        "    time.sleep(600)\n"
        "works()\n"
    )
    with program(code) as pid:
        samples = record(PySpy(Stacks.PYTHON), pid, tmp_path)
        assert state_of(pid) == "S"
        (main,) = (one for one in samples if one.pid == pid)
        children = {one.pid for one in samples} - {pid}
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert (main.tid, main.thread) == (pid, "MainThread")
    assert [frame.function for frame in main.frames] == ["works", "<module>"]
    assert main.frames[0].line == 5
    assert 0 < main.count <= RATE_HZ + 1
    assert len(children) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_cannot_be_taken_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="--stacks off"):
        record(PySpy(Stacks.OFF), os.getpid(), tmp_path)
    with pytest.raises(EvidenceError):
        record(PySpy(Stacks.PYTHON), 2**22, tmp_path)
    silent = script(tmp_path / "silent", "exit 0")
    with pytest.raises(EvidenceError, match="cannot be read"):
        record(PySpy(Stacks.PYTHON, binary=silent), 1, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["silent"]


def test_a_profile_is_read_line_by_line() -> None:
    text = (
        'process 7:"python -c a;b";thread (7): MainThread;<module> (/t.py:3);f (/x (1).py:9) 12\n'
        'process 7:"x";process 8:"python w.py";thread (9): Thread-1 (run);g (<string>:1) 3\n'
        'process 7:"x";thread (7): M;f (/t.py:1) many\n'
        'process 7:"a command\n'
        'with line breaks\n";thread (7);<module> (/t.py:3) 1\n'
    )
    first, second, third = parse_profile(text.encode())
    frames = (Frame("/x (1).py", 9, "f"), Frame("/t.py", 3, "<module>"))
    assert first == StackSamples(7, 7, "MainThread", frames, 12)
    assert second == StackSamples(8, 9, "Thread-1 (run)", (Frame("<string>", 1, "g"),), 3)
    assert third == StackSamples(7, 7, "", (Frame("/t.py", 3, "<module>"),), 1)


def test_stacks_can_be_off() -> None:
    with pytest.raises(EvidenceError, match="--stacks off"):
        dump(PySpy(Stacks.OFF), os.getpid())


def test_a_missing_py_spy_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(NoStacksError, match="cannot be run"):
        dump(PySpy(Stacks.PYTHON, binary=str(tmp_path / "py-spy")), os.getpid())


def test_a_process_that_has_ended_has_no_stack() -> None:
    with program() as pid:
        pass
    with pytest.raises(EvidenceError, match="has ended"):
        dump(PySpy(Stacks.PYTHON), pid)


def test_a_process_that_is_no_python_is_said_to_be_none() -> None:
    with program(
        "import os; print(1, flush=True); os.execv('/bin/sleep', ['sleep', '600'])"
    ) as pid:
        until(lambda: command_line(pid) == "sleep 600", "sleep to run")
        with pytest.raises(EvidenceError, match="py-spy failed"):
            dump(PySpy(Stacks.PYTHON), pid)


def test_a_py_spy_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    slow = script(tmp_path / "py-spy", "exec sleep 600")
    began = time.monotonic()
    with pytest.raises(EvidenceError, match="did not answer within"):
        dump(PySpy(Stacks.PYTHON, binary=slow), os.getpid(), 0.2)
    in_time(began, 20)


def test_a_process_that_a_dead_tracer_left_stopped_goes_on(tmp_path: Path) -> None:
    # Stands for a py-spy that was killed after its SIGSTOP and before it let go.
    text = 'case "$*" in *--native*) kill -STOP "$3"; exec sleep 600;; esac; exit 1'
    spy = script(tmp_path / "py-spy", text)
    with program() as pid:
        with pytest.raises(EvidenceError):
            dump(PySpy(Stacks.NATIVE, binary=spy), pid, 1.0)
        until_state(pid, "S")
        assert state_of(pid) == "S"


def test_a_torn_dump_is_taken_again(tmp_path: Path) -> None:
    thread = '"os_thread_id": %d, "thread_name": null, "active": true, "owns_gil": true'
    frame = '{"filename": "a.py", "line": 3, "name": "%s"}'
    whole = f'[{{{thread % 7}, "frames": [{frame % "f"}, {frame % "<module>"}]}}]'
    torn = f'[{{{thread % 7}, "frames": [{frame % "f"}]}}]'
    (tmp_path / "whole").write_text(whole)
    (tmp_path / "torn").write_text(torn)
    text = f"cd {tmp_path}; if [ -e again ]; then cat whole; else touch again; cat torn; fi"
    with program() as pid:
        for name in ("whole", "torn"):
            path = tmp_path / name
            path.write_text(path.read_text().replace(": 7,", f": {pid},"))
        (found,) = dump(PySpy(Stacks.PYTHON, binary=script(tmp_path / "spy", text)), pid)
    assert [one.function for one in found.frames] == ["f", "<module>"]
    assert found.name == "MainThread"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'[{"os_thread_id": "x"}]', b"\xff"])
def test_odd_output_is_an_error_of_ours(data: bytes) -> None:
    if data == b"{}":
        with pytest.raises(EvidenceError):
            parse(data, 1)
    else:
        with pytest.raises(EvidenceError, match="cannot read"):
            parse(data, 1)


def test_a_refusal_names_ptrace_scope_where_that_is_why(tmp_path: Path) -> None:
    scope = tmp_path / "sys/kernel/yama/ptrace_scope"
    scope.parent.mkdir(parents=True)
    scope.write_text("1\n")
    complaint = "Permission Denied: Try running again with elevated permissions"
    found = refusal(complaint, str(tmp_path))
    assert isinstance(found, NoStacksError)
    assert "sysctl kernel.yama.ptrace_scope=0" in str(found)


def test_a_refusal_in_a_container_names_the_capability(tmp_path: Path) -> None:
    found = refusal("Permission Denied: Try again", str(tmp_path))
    assert isinstance(found, NoStacksError)
    assert "--cap-add SYS_PTRACE" in str(found)


def test_any_other_complaint_is_of_one_process(tmp_path: Path) -> None:
    found = refusal("Error: Failed to find python version\n\nCaused by:\n  0: x\n", str(tmp_path))
    assert not isinstance(found, NoStacksError)
    assert str(found) == "py-spy failed: Failed to find python version"


def test_frames_are_plain_values() -> None:
    data = (
        b'[{"os_thread_id": 9, "thread_name": "T", "active": false, "owns_gil": false,'
        b' "frames": [{"filename": "/a.py", "line": 3, "name": "f", "locals": null}]}]'
    )
    assert parse(data, 1) == (ThreadStack("T", 9, False, False, (Frame("/a.py", 3, "f"),)),)  # noqa: FBT003 (fields)
