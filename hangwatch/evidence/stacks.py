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
import re
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
from hangwatch.model.profile import StackSamples
from hangwatch.model.snapshot import Frame, ThreadStack
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner
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
RATE_HZ = 50
"""Samples of a profile, which takes a twentieth of a CPU meanwhile."""
_RECORD = re.compile(r"^(?=process \d+:)", re.MULTILINE)
_PROCESS = re.compile(r"process (\d+):")
_THREAD = re.compile(r"thread \((\d+)\)(?:: (.*))?$")
_SAMPLED_FRAME = re.compile(r"(?P<function>.*?) \((?P<file>.*?)(?::(?P<line>\d+))?\)")
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
        self._check()
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

    async def record(self, pid: int, seconds: int, directory: Path) -> tuple[StackSamples, ...]:
        """Sample the stacks of a process and of those that it has started, without stopping any.

        directory: for a file that is removed again. Raises as dump() does.
        """
        output = directory / f"profile-{pid}"
        command = ["record", "--pid", str(pid), "--duration", str(seconds), "--output", str(output)]
        command += ["--rate", str(RATE_HZ), "--format", "raw", "--nonblocking", "--full-filenames"]
        command += ["--idle", "--threads", "--subprocesses"]
        try:
            self._check()
            await self._call(command, seconds + timing.PY_SPY_S)
            return parse_profile(untrusted.read(output, MAX_BYTES, Owner.DIRECTORY))
        except OSError as error:
            why = error.strerror or str(error)
            raise EvidenceError(f"the profile of py-spy cannot be read ({why})") from error
        finally:
            with suppress(OSError):
                output.unlink()

    def _check(self) -> None:
        if self._mode is Stacks.OFF:
            raise EvidenceError("stacks are off (--stacks off)")
        if self._binary is None:
            raise NoStacksError(
                "py-spy was not found: install it where hangwatch runs (pip install py-spy)"
            )

    async def _run(self, pid: int, flags: list[str], timeout_s: float) -> tuple[ThreadStack, ...]:
        return parse(
            await self._call(["dump", "--pid", str(pid), "--json", *flags], timeout_s), pid
        )

    async def _call(self, arguments: list[str], timeout_s: float) -> bytes:
        command = [self._binary or "", *arguments]
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
        return out


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


def parse_profile(data: bytes) -> tuple[StackSamples, ...]:
    """Parse what ``py-spy record --format raw --threads --subprocesses`` writes.

    Each record is a stack from the outermost frame on, below its thread and processes, and a count.
    It takes more than one line if the command of a process does. What is none is left out.
    """
    records = _RECORD.split(data.decode("utf-8", "replace"))
    return tuple(filter(None, map(_samples, records)))


def _samples(record: str) -> StackSamples | None:
    words, _, count = record.rstrip().rpartition(" ")
    parts = words.split(";")
    at = next((i for i in reversed(range(len(parts))) if _THREAD.match(parts[i])), -1)
    pids = [found[1] for part in parts[: max(at, 0)] if (found := _PROCESS.match(part))]
    thread = _THREAD.match(parts[at])
    if thread is None or not pids or not count.isdecimal():
        return None
    frames = (
        Frame(found["file"], int(found["line"] or 0), found["function"])
        for part in reversed(parts[at + 1 :])
        if (found := _SAMPLED_FRAME.fullmatch(part)) and not found["file"].endswith(_WRAPPERS)
    )
    return StackSamples(int(pids[-1]), int(thread[1]), thread[2] or "", tuple(frames), int(count))


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
