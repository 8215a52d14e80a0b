"""How the watchdog learns that a rank ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from waiting import BOUND_S, within

from hangwatch.evidence.exits import Exits, OomKills
from hangwatch.evidence.processes import read_stat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hangwatch.model.snapshot import ProcessState


def start(code: str = "input()") -> tuple[subprocess.Popen[bytes], int]:
    """A Python child that waits for a line, and when it started."""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)  # noqa: S603 (our own Python)
    stat = read_stat(child.pid)
    assert stat is not None
    return child, stat.start_ticks


def finish(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def go_on(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()


def in_turn(
    *ends: Callable[[subprocess.Popen[bytes]], Any],
    code: str = "input()",
    reap: bool = False,
    asked_s_ago: float | None = None,
    up_s: float | None = None,
) -> list[ProcessState]:
    """What is known of children that were ended one after the other.

    asked_s_ago: when their launcher was asked to end. up_s: how long the machine is up.
    """

    async def watch() -> list[ProcessState]:
        clock = time.monotonic_ns if up_s is None else lambda: int(up_s * 1e9)
        exits, told = Exits(now_ns=clock), asyncio.Semaphore(0)
        if asked_s_ago is not None:
            exits.asked_to_end_ns = time.monotonic_ns() - int(asked_s_ago * 1e9)
        exits.on_exit = lambda _: told.release()
        children = [start(code) for _ in ends]
        for child, start_ticks in children:
            exits.track(child.pid, start_ticks)
            assert exits.state(child.pid, start_ticks).alive
        for (child, _), end in zip(children, ends, strict=True):
            end(child)
            if reap:
                child.wait()
            await within(told.acquire())
        states = [exits.state(child.pid, start_ticks) for child, start_ticks in children]
        exits.close()
        for child, _ in children:
            finish(child)
        return states

    return asyncio.run(watch())


def by(number: signal.Signals) -> Callable[[subprocess.Popen[bytes]], None]:
    return lambda child: child.send_signal(number)


def test_an_exit_code_is_read_from_the_zombie() -> None:
    (state,) = in_turn(go_on, code="input(); raise SystemExit(3)")
    assert (state.alive, state.exit_code, state.signal) == (False, 3, None)
    assert state.gone_age_s is not None
    assert state.gone_age_s < BOUND_S


def test_a_signal_is_read_from_the_zombie() -> None:
    (state,) = in_turn(by(signal.SIGKILL))
    assert (state.exit_code, state.signal, state.oom_killed) == (None, signal.SIGKILL, False)
    assert not state.terminated_by_launcher


def test_how_a_reaped_process_ended_is_known_where_the_kernel_keeps_it() -> None:
    (state,) = in_turn(go_on, code="input(); raise SystemExit(3)", reap=True)
    assert not state.alive
    kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert state.exit_code == (3 if kernel >= (6, 15) else None)


def test_a_process_that_was_gone_before_is_told_from_its_last_sign_of_life() -> None:
    async def watch() -> ProcessState:
        exits = Exits()
        child, start_ticks = start()
        finish(child)
        exits.track(child.pid, start_ticks, time.monotonic_ns() - 5_000_000_000)
        return exits.state(child.pid, start_ticks)

    state = asyncio.run(watch())
    assert not state.alive
    assert state.gone_age_s is not None
    assert state.gone_age_s >= 5


def test_a_reused_pid_is_not_taken_for_the_rank() -> None:
    async def watch() -> ProcessState:
        exits = Exits()
        exits.track(os.getpid(), 1)
        state = exits.state(os.getpid(), 1)
        exits.close()
        return state

    assert not asyncio.run(watch()).alive


def test_who_is_killed_after_another_has_failed_was_ended_by_the_launcher() -> None:
    first, second = in_turn(by(signal.SIGSEGV), by(signal.SIGTERM))
    assert (first.signal, first.terminated_by_launcher) == (signal.SIGSEGV, False)
    assert (second.signal, second.terminated_by_launcher) == (signal.SIGTERM, True)


def test_who_is_killed_after_another_came_to_a_good_end_was_not_ended_by_the_launcher() -> None:
    first, second = in_turn(go_on, by(signal.SIGKILL))
    assert first.exit_code == 0
    assert (second.signal, second.terminated_by_launcher) == (signal.SIGKILL, False)


@pytest.mark.parametrize(("asked_s_ago", "by_launcher"), [(0, True), (30, True), (600, False)])
def test_who_is_killed_soon_after_the_launcher_was_asked_to_end_was_ended_by_it(
    asked_s_ago: float, *, by_launcher: bool
) -> None:
    (first,) = in_turn(by(signal.SIGKILL), asked_s_ago=asked_s_ago)
    assert (first.signal, first.terminated_by_launcher) == (signal.SIGKILL, by_launcher)


def fail(child: subprocess.Popen[bytes]) -> None:
    """Let a child end with exit code 1, of a line that never comes."""
    assert child.stdin is not None
    child.stdin.close()


@pytest.mark.parametrize(("asked_s_ago", "by_launcher"), [(0, True), (600, False), (None, False)])
def test_who_ends_with_a_code_when_the_launcher_was_asked_to_end_did_so_for_that(
    asked_s_ago: float | None, *, by_launcher: bool
) -> None:
    (first,) = in_turn(fail, asked_s_ago=asked_s_ago)
    assert (first.exit_code, first.terminated_by_launcher) == (1, by_launcher)
    (well,) = in_turn(go_on, asked_s_ago=asked_s_ago)
    assert (well.exit_code, well.terminated_by_launcher) == (0, False)


def test_soon_after_the_machine_has_started_nobody_was_asked_to_end_yet() -> None:
    killed, failed = in_turn(by(signal.SIGKILL), fail, up_s=30.0)
    assert not killed.terminated_by_launcher
    assert not failed.terminated_by_launcher


def test_a_watchdog_that_takes_over_knows_the_ends_that_were_seen() -> None:
    async def watch() -> tuple[ProcessState, ProcessState]:
        exits, told = Exits(), asyncio.Event()
        exits.on_exit = lambda _: told.set()
        child, start_ticks = start()
        exits.track(child.pid, start_ticks)
        child.kill()
        await within(told.wait())
        before = exits.state(child.pid, start_ticks)
        successor = Exits()
        successor.restore(exits.export())
        exits.close()
        finish(child)
        successor.track(child.pid, start_ticks)
        return before, successor.state(child.pid, start_ticks)

    before, after = asyncio.run(watch())
    assert (before.signal, after.signal) == (signal.SIGKILL, signal.SIGKILL)


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/job", "cgroup/job/memory.events"),
        ("0::/the/host's/name/for/it", "cgroup/memory.events"),
        ("4:memory:/job", "cgroup/memory/job/memory.oom_control"),
        ("4:cpu:/job", "proc/vmstat"),
    ],
)
def test_an_out_of_memory_kill_is_told_by_its_counter(tmp_path: Path, line: str, file: str) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(f"{line}\n")
    counter = tmp_path / file
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text("low 0\noom_kill 4\n")
    kills = OomKills(str(tmp_path / "proc"), str(tmp_path / "cgroup"))
    kills.begin(7)
    assert not kills.explains(7)
    counter.write_text("low 0\noom_kill 5\n")
    assert kills.explains(7)
    assert not kills.explains(7)  # one kill explains one end


def test_without_a_counter_no_end_is_called_out_of_memory(tmp_path: Path) -> None:
    kills = OomKills(str(tmp_path), str(tmp_path))
    kills.begin(7)
    assert not kills.explains(7)


def test_who_is_killed_first_after_a_restart_was_not_ended_by_the_launcher() -> None:
    async def watch() -> ProcessState:
        exits, told = Exits(), asyncio.Semaphore(0)
        exits.on_exit = lambda _: told.release()
        children = [start(), start()]
        for number, (child, start_ticks) in enumerate(children):
            if number == 1:
                exits.forget_ended()
                assert exits.ended() == {}
            exits.track(child.pid, start_ticks)
            child.send_signal(signal.SIGKILL)
            await within(told.acquire())
        state = exits.state(children[1][0].pid, children[1][1])
        exits.close()
        for child, _ in children:
            finish(child)
        return state

    state = asyncio.run(watch())
    assert (state.signal, state.terminated_by_launcher) == (signal.SIGKILL, False)


def test_who_is_killed_for_memory_was_not_ended_by_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OomKills, "explains", lambda *_: True)
    _, state = in_turn(by(signal.SIGSEGV), by(signal.SIGKILL))
    assert (state.oom_killed, state.terminated_by_launcher) == (True, False)
