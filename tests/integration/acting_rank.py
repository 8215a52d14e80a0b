"""A rank as far as its page goes: does what it is told on standard input.

Run as a program it writes a native page; imported, ``Rank`` starts and commands it.
It spares the tests of the watchdog the seconds that torch and a rendezvous take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path


class Rank:
    """A process with a page. Each command is a line, and is done when it is answered."""

    def __init__(self, run_dir: Path, rank: int, **identity: Any) -> None:
        told = {"rank": rank, "world_size": 2, "local_world_size": 2, **identity}
        self.process = subprocess.Popen(  # noqa: S603 (our own Python)
            [sys.executable, __file__, str(run_dir), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        self._answer()

    def do(self, command: str) -> None:
        """``begin [OP]``, ``end``, ``work N``, ``beat``, ``phase NAME``, ``exit CODE``.

        ``child WORD...`` starts a process, ``raises WORD...`` is answered by nothing.
        """
        self.send(command)
        self._answer()

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n"


class _Group:
    """Has the number that c10d's group of a rank with gloo has."""

    seq = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.seq


class _Work:
    pass


class _Actor:
    def __init__(self, run_dir: str, told: dict[str, Any]) -> None:
        from hangwatch import _native  # noqa: PLC0415 (the test process needs none)
        from hangwatch.agent.inject.rank import start_ticks  # noqa: PLC0415
        from hangwatch.safety.texts import readable_all  # noqa: PLC0415

        self.native = _native
        pid = os.getpid()
        identity = {
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "local_rank": told["rank"],
            "restart": 0,
            "host": "node0",
            "store_host": "",
            "store_port": 0,
            "run_id": "",
            "program": "",
            **readable_all(told),  # as the agent does
        }
        name = f"r{identity['restart']}-{identity['rank']}-{pid}.page"
        _native.open_page(f"{run_dir}/{name}", identity)
        _native.set_phase("running")
        world = list(range(told["world_size"]))
        _native.define_group(0, "0", "default_pg", world, 0, "gloo")
        self.group = _Group()
        _native.wrap_methods(_Group, _Work, lambda _: -1)  # it is recorded by hand
        self.event = -1

    def begin(self, op: str = "all_reduce") -> None:
        self.group.seq += 1
        p2p, dtype, shape, root, peer, tag, is_async = (False, "float32", [4], -1, -1, 0, False)
        self.event = self.native.record_begin(
            0, op, op, self.group.seq, p2p, dtype, shape, root, peer, tag, is_async
        )
        self.native.sample_number(0, self.group, self.group.seq - 1)

    def end(self) -> None:
        self.native.record_end(self.event, False)  # noqa: FBT003 (it takes no keywords)
        self.native.sample_number(0, self.group, self.group.seq)

    def work(self, count: str) -> None:
        for _ in range(int(count)):
            self.begin()
            self.end()

    def beat(self) -> None:
        self.native.beat("", False, False)  # noqa: FBT003 (it takes no keywords)

    def phase(self, name: str) -> None:
        self.native.set_phase(name)

    def raises(self, *words: str) -> None:
        """End of an exception, as the agent records it."""
        from hangwatch.agent.sample.exceptions import message  # noqa: PLC0415 (as above)

        text = message(ValueError(" ".join(words)))
        self.native.set_exception("ValueError", text, "/home/me/train.py", 7, "main")
        self.native.set_phase("raised")
        os._exit(1)

    def child(self, *words: str) -> None:
        """Start a process with these arguments, which ends with this one's input."""
        command = [sys.executable, "-c", "import sys; sys.stdin.read()", *words]
        self.started = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 (our Python)

    def exit(self, code: str) -> None:
        self.native.set_phase("exited")
        os._exit(int(code))


def _act() -> None:
    actor = _Actor(sys.argv[1], json.loads(sys.argv[2]))
    _done()
    for line in sys.stdin:
        name, *arguments = line.split()
        getattr(actor, name)(*arguments)
        _done()


def _done() -> None:
    sys.stdout.write("done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _act()
