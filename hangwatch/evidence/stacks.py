"""Takes Python stacks of other processes by py-spy.

``py-spy dump --json --nonblocking`` reads a process's memory without stopping
it: nothing is attached, so that a watchdog that dies in the middle cannot leave
a rank stopped, and a rank that is stopped already can be read as well (a
blocking dump fails there). What moves while it is read may come out torn; such
a dump is taken again. Native frames need a stopped process.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from hangwatch.errors import EvidenceError
from hangwatch.evidence import timing
from hangwatch.evidence.processes import PROC, read_stat
from hangwatch.model.snapshot import Frame, ThreadStack
from hangwatch.settings.config import Stacks

CONCURRENCY = 2
"""Dumps at a time: the node is the job's, not ours."""
TRIES = 3
MAX_BYTES = 8 << 20
MAIN_THREAD = "MainThread"
_MAX_FRAMES = 400
_WRAPPERS = "/hangwatch/agent/record/importlib._bootstrap"
"""The file that frames of our own wrappers are in (agent/record/hidden_wrappers.py)."""
_MAX_THREADS = 256
_STOPPED = frozenset("Tt")


class NoStacksError(EvidenceError):
    """No process's stack can be taken; the message says how to allow it."""


class PySpy:
    """Takes stacks, a few at a time."""

    def __init__(self, mode: Stacks, *, binary: str | None = None, proc: str = PROC) -> None:
        self._mode = mode
        self._binary = binary if binary is not None else find_py_spy()
        self._proc = proc
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def dump(self, pid: int, timeout_s: float | None = None) -> tuple[ThreadStack, ...]:
        """Return the threads of a process.

        Raises NoStacksError where it is not this process's fault, else EvidenceError.
        """
        if self._mode is Stacks.OFF:
            raise EvidenceError("stacks are off (--stacks off)")
        if self._binary is None:
            raise NoStacksError(
                "py-spy was not found: install it where hangwatch runs (pip install py-spy)"
            )
        async with self._slots:
            return await self._dump(pid, timeout_s)

    async def _dump(self, pid: int, timeout_s: float | None) -> tuple[ThreadStack, ...]:
        stat = read_stat(pid, self._proc)
        if stat is None or stat.ended:
            raise EvidenceError("the process has ended")
        if self._mode is Stacks.NATIVE and stat.state not in _STOPPED:
            with suppress(EvidenceError):  # a Python stack is better than none
                return await self._native(pid, timeout_s or timing.PY_SPY_NATIVE_S)
        best: tuple[ThreadStack, ...] = ()
        failure: EvidenceError | None = None
        for _ in range(TRIES):
            try:
                threads = await self._run(pid, ["--nonblocking"], timeout_s or timing.PY_SPY_S)
            except (_NoAnswerError, NoStacksError):
                raise
            except EvidenceError as error:
                failure = error
                continue
            best = max(best, threads, key=lambda found: sum(len(one.frames) for one in found))
            if is_whole(threads, pid):
                break
        if not best and failure is not None:
            raise failure
        return best

    async def _native(self, pid: int, timeout_s: float) -> tuple[ThreadStack, ...]:
        try:
            return await self._run(pid, ["--native"], timeout_s)
        except _NoAnswerError:
            # A tracer killed between its SIGSTOP and the wait for it leaves the process stopped.
            stat = read_stat(pid, self._proc)
            if stat is not None and stat.state in _STOPPED:
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
            raise

    async def _run(self, pid: int, flags: list[str], timeout_s: float) -> tuple[ThreadStack, ...]:
        command = [self._binary or "", "dump", "--pid", str(pid), "--json", *flags]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "RUST_BACKTRACE": "0"},
            )
        except OSError as error:
            raise NoStacksError(f"py-spy cannot be run: {error.strerror or error}") from error
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError:
            raise _NoAnswerError(f"py-spy did not answer within {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                with suppress(TimeoutError):  # one in an uninterruptible sleep is left behind
                    await asyncio.wait_for(process.wait(), timing.PY_SPY_KILLED_S)
        if process.returncode:
            raise refusal(err.decode("utf-8", "replace"), self._proc)
        return parse(out, pid)


class _NoAnswerError(EvidenceError):
    """py-spy ran into the timeout; trying again would only take as long."""


def find_py_spy() -> str | None:
    """Return the py-spy next to this Python, else the one on PATH."""
    neighbour = Path(sys.executable).with_name("py-spy")
    return str(neighbour) if os.access(neighbour, os.X_OK) else shutil.which("py-spy")


def parse(data: bytes, pid: int) -> tuple[ThreadStack, ...]:
    """Parse the output of ``py-spy dump --json``, which lists the innermost frame first.

    Raises EvidenceError for anything else.
    """
    if len(data) > MAX_BYTES:
        raise EvidenceError(f"py-spy wrote more than {MAX_BYTES >> 20} MiB")
    try:
        threads = orjson.loads(data)
        return tuple(_thread(thread, pid) for thread in threads[:_MAX_THREADS])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EvidenceError(f"py-spy wrote what hangwatch cannot read ({error})") from error


def is_whole(threads: tuple[ThreadStack, ...], pid: int) -> bool:
    """True if the main thread's stack goes down to where Python was entered."""
    main = [thread for thread in threads if thread.tid == pid and thread.frames]
    return all(thread.frames[-1].function == "<module>" for thread in main) and bool(main)


def refusal(errors: str, proc: str = PROC) -> EvidenceError:
    """Return py-spy's complaint with its remedy, in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if not any("permission denied" in line.lower() or "EPERM" in line for line in lines):
        complaint = lines[0].removeprefix("Error: ") if lines else "no reason given"
        return EvidenceError(f"py-spy failed: {complaint}")
    try:
        scope = Path(proc, "sys/kernel/yama/ptrace_scope").read_text("utf-8").strip()
    except OSError:
        scope = "0"
    if scope not in ("", "0"):
        return NoStacksError(
            f"py-spy was refused (kernel.yama.ptrace_scope is {scope}): allow it with "
            "'sysctl kernel.yama.ptrace_scope=0', or give hangwatch CAP_SYS_PTRACE"
        )
    return NoStacksError(
        "py-spy was refused: give hangwatch CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE; "
        'securityContext.capabilities.add: ["SYS_PTRACE"] in Kubernetes) and run it as the '
        "user that runs the job"
    )


def _thread(thread: Mapping[str, Any], pid: int) -> ThreadStack:
    tid = int(thread["os_thread_id"] or 0)
    name = thread["thread_name"] or (MAIN_THREAD if tid == pid else "")
    frames = (
        Frame(str(frame["filename"]), int(frame["line"]), str(frame["name"]))
        for frame in thread["frames"][:_MAX_FRAMES]
        if not str(frame["filename"]).endswith(_WRAPPERS)
    )
    return ThreadStack(
        str(name), tid, bool(thread["active"]), bool(thread["owns_gil"]), tuple(frames)
    )
