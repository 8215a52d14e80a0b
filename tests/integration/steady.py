"""A job of two ranks that runs until it is told to stop, under watch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness import FORKED, TOKEN, end, environment, processes
from waiting import BOUND_S, until_in_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


STEADY = """
import os, sys, time
rendezvous, fault, code = sys.argv[1], sys.argv[2], int(sys.argv[3])
if fault == "undumpable":
    import ctypes
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: only CAP_SYS_PTRACE may look inside
import torch
import torch.distributed as dist
if fault.startswith("deaf"):
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
going = torch.ones(1)
steps = 0
while going.item():
    going.fill_(rank == 0 and not os.path.exists("stop"))
    dist.all_reduce(going)
    steps += 1
    if steps == 5 and rank == 0:
        open("running", "w").close()
    if steps % 10 == 0 and rank == 0:
        with open(".steps", "w") as told:
            told.write(str(steps))
        os.replace(".steps", "steps")
    if steps == 20 and fault.endswith("hang") and rank == 1:
        time.sleep(3600)
    while rank == 1 and os.path.exists("pause"):
        time.sleep(0.02)
    time.sleep(0.02)
dist.destroy_process_group()
if rank == 0:
    print("finished", flush=True)
sys.exit(code)
"""
"""Runs until there is a file ``stop``. Arguments: rendezvous, what is wrong with it, and
the exit code of each rank."""
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")
FORKS = (sys.executable, str(FORKED), "2")
"""In place of torchrun, where nothing rests on that."""


class Job:
    """The job under watch, in a directory of its own."""

    def __init__(  # noqa: PLR0913 (how it is started, by keyword)
        self,
        where: Path,
        *options: str,
        code: int = 0,
        fault: str = "none",
        rendezvous: str = "env://",
        env: Mapping[str, str] | None = None,
        python: Path = Path(sys.executable),
        before: Sequence[str] = (),
        launch: Sequence[str] = FORKS,
    ) -> None:
        """before: what starts hangwatch. launch: what starts the ranks."""
        self.where = where
        self.token = uuid.uuid4().hex
        (where / "steady.py").write_text(STEADY)
        command = (*before, str(python), "-m", "hangwatch", *options, *launch, "steady.py")
        with (where / "out").open("wb") as out, (where / "err").open("wb") as err:
            self.process = subprocess.Popen(  # noqa: S603 (the command is made above)
                [*command, rendezvous, fault, str(code)],
                cwd=where,
                env=environment(env or {}) | {TOKEN: self.token},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process, self.token)
        sys.stderr.write(self.said())  # shown where a test fails

    def said(self) -> str:
        """Standard error so far."""
        return (self.where / "err").read_text(errors="replace")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something; the job must not end before."""
        until_in_job(self.process, condition, what, self.said)

    def until_running(self) -> None:
        """Wait until the ranks work."""
        self.until((self.where / "running").exists, "the ranks to run")

    def until_said(self, text: str) -> None:
        """Wait until a text was said."""
        self.until(lambda: text in self.said(), repr(text))

    def pause(self) -> None:
        """Have rank 1 hold up the others."""
        (self.where / "pause").touch()

    def go_on(self) -> None:
        """Have it go on."""
        (self.where / "pause").unlink()

    def stop(self) -> None:
        """Let the ranks finish."""
        (self.where / "stop").touch()

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(BOUND_S)

    def ends_well(self) -> None:
        """Hold that the job comes to its own end."""
        self.stop()
        assert self.wait() == 0, self.said()
        assert (self.where / "out").read_text() == "finished\n"

    def says_once(self, text: str) -> None:
        """Hold that a text was said once."""
        assert self.said().count(text) == 1, self.said()

    def watchdogs(self) -> list[int]:
        """Living watchdogs."""
        found = processes(self.token)
        return [pid for pid, line in found.items() if "hangwatch.watchdog" in line]

    def run_dir(self) -> Path:
        """Where the pages are."""
        for pid in processes(self.token):
            with suppress(OSError):
                for entry in environ_of(pid):
                    if entry.startswith(b"HANGWATCH_DIR="):
                        found = Path(os.fsdecode(entry.partition(b"=")[2]))
                        if found.name.startswith("2"):
                            return found
        raise AssertionError("no process knows the run directory")

    def lost(self) -> list[str]:
        """What run.json says was lost."""
        (path,) = self.where.glob("hangwatch-reports/2*/run.json")
        content: dict[str, Any] = json.loads(path.read_bytes())
        return list(content["lost"])


def environ_of(pid: int) -> list[bytes]:
    """The variables that a process was started with."""
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
