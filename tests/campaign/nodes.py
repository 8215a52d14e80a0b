"""A job on two nodes, which are two supervisors on this machine, with a proxy before the store."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import oracle
from fault import Outcome, merged
from harness import TOKEN
from job import PATIENCE_S, POLL_S, Job, Result, busy
from storeproxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from storeproxy import Tampering

NODES = 2


class Nodes:
    """Two jobs with a rank each, that are one."""

    def __init__(
        self,
        where: Path,
        *options: str,
        watched: bool = True,
        tampering: Tampering | None = None,
        program: str = "steps.py",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.where, self.options, self.watched = where, options, watched
        self.program, self.env = program, dict(env or {})
        where.mkdir(parents=True, exist_ok=True)
        self.proxy = Proxy(where / "store", self._node_of, tampering)
        self.jobs: list[Job] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.proxy)
            for node in range(NODES):
                env = {
                    **self.env,
                    "CAMPAIGN_STORE": str(self.where / "store"),
                    "CAMPAIGN_STORE_PORT": str(self.proxy.port),
                    "CAMPAIGN_WORLD_SIZE": str(NODES),
                    "CAMPAIGN_FIRST_RANK": str(node),
                    "CAMPAIGN_LAUNCHERS": str(NODES),
                }
                one = Job(
                    self.where / str(node),
                    *self.options,
                    watched=self.watched,
                    ranks=1,
                    program=self.program,
                    env=env,
                )
                self.jobs.append(stack.enter_context(one))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def until(self, condition: Callable[[], object], *, bound_s: float = PATIENCE_S) -> bool:
        """Wait until something holds; False if both have ended, or time is over, before."""
        deadline = time.monotonic() + bound_s
        while not condition():
            over = all(job.process.poll() is not None for job in self.jobs)
            if over or time.monotonic() > deadline:
                return bool(condition())
            time.sleep(POLL_S)
        return True

    def until_ready(self) -> bool:
        """Wait until all ranks are at the gate."""
        paths = [job.where / f"ready-{rank}" for rank, job in enumerate(self.jobs)]
        bound_s = PATIENCE_S * busy()
        return self.until(lambda: all(path.exists() for path in paths), bound_s=bound_s)

    def touch(self, name: str) -> None:
        """Make a file that the program looks for, on both nodes."""
        for job in self.jobs:
            job.touch(name)

    def said(self, text: str) -> int:
        """How many nodes have said something so far."""
        return sum(text in job.said() for job in self.jobs)

    def finish(self) -> list[Result]:
        """Wait for the end of both."""
        return [job.finish() for job in self.jobs]

    def _node_of(self, port: int) -> int | None:
        """The node whose watchdog has this port of the loopback, None if none has."""
        inode = _inode(port)
        if not inode:
            return None
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                if b"hangwatch.watchdog" in (path / "cmdline").read_bytes() and any(
                    str(fd.readlink()) == f"socket:[{inode}]" for fd in (path / "fd").iterdir()
                ):
                    environ = (path / "environ").read_bytes().split(b"\0")
                    marks = [f"{TOKEN}={job.token}".encode() for job in self.jobs]
                    return next((n for n, mark in enumerate(marks) if mark in environ), None)
        return None


def _inode(port: int) -> str:
    """Of the client's end of a connection over the loopback, whichever table has it."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "01":
                    return fields[9]
    return ""


def bare(stall: int) -> list[Result]:
    """The results of both without hangwatch, run once for each stalling rank."""
    found: list[Result] = []

    def run(node: int) -> Callable[[Path], Result]:
        def both(where: Path) -> Result:
            with Nodes(where, watched=False, env={"STALL": str(stall)}) as nodes:
                nodes.until_ready()
                nodes.touch("gate")
                nodes.touch("release")
                found.extend(nodes.finish())
            return found[node]

        return both

    oracle.bare(f"nodes {stall} 0", run(0))
    oracle.bare(f"nodes {stall} 1", lambda _: found[1] if found else run(1)(_))
    return [oracle.bare(f"nodes {stall} {node}", run(node)) for node in range(NODES)]


def unharmed(watched: list[Result], stall: int, *, extra_s: float) -> Outcome:
    """What a user of either node would have noticed."""
    pairs = zip(watched, bare(stall), strict=True)
    return merged([oracle.unharmed(one, other, extra_s=extra_s) for one, other in pairs])


def named(watched: list[Result], culprit: int, *, may_mislead: bool = False) -> Outcome:
    """The rank that stalled is named on at least one node, or a loss told on one.

    may_mislead: the store lied about a rank of the other node, which nobody can know.
    """
    outcomes = [oracle.named(_begun(one), culprit) for one in watched]
    harmed = [] if may_mislead else [line for one in outcomes for line in one.harmed]
    lost = [] if any(not one.lost for one in outcomes) else outcomes[0].lost
    return Outcome(harmed=harmed, lost=lost)


def _begun(result: Result) -> Result:
    """Without the reports on its start, which a busy machine may have made slow on one node."""
    reports = [one for one in result.reports if one["verdict"]["kind"] != "init_incomplete"]
    return replace(result, reports=reports)
