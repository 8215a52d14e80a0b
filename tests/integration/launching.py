"""A command of a launcher, started as a user would, with its files in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness import TOKEN, end, environment, processes, read_reports
from waiting import BOUND_S, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAMS = Path(__file__).parent / "programs"


def line_of(program: Path, marked: str = "# culprit") -> int:
    """The number of the line that holds a mark."""
    lines = program.read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if marked in line)
    return number


class Launched:
    """The command while it runs. At the end nothing is left of it."""

    def __init__(
        self,
        where: Path,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        python: str = sys.executable,
    ) -> None:
        """python: its directory comes first on PATH."""
        self.where, self.token = where, uuid.uuid4().hex
        self.base = where / "base"
        self.base.mkdir()
        own = environment({"HANGWATCH_DIR": str(self.base), **(env or {}), TOKEN: self.token})
        own["PATH"] = f"{Path(python).parent}{os.pathsep}{own['PATH']}"
        with (where / "stdout").open("wb") as out, (where / "stderr").open("wb") as err:
            self.process = subprocess.Popen(  # noqa: S603 (the test's own command)
                command,
                cwd=where,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process, self.token)
        sys.stderr.write(f"{self.printed()}\n---\n{self.said()}")

    def printed(self) -> str:
        """Its standard output so far."""
        return (self.where / "stdout").read_text("utf-8", "replace")

    def said(self) -> str:
        """Its standard error so far."""
        return (self.where / "stderr").read_text("utf-8", "replace")

    def news(self) -> list[str]:
        """The lines of ours that begin something, without the name."""
        start = "hangwatch"
        return [line for line in self.said().splitlines() if line.startswith(start)]

    def until_said(self, text: str) -> None:
        """Wait until its standard error holds this."""
        until(lambda: text in self.said(), repr(text))

    def until_running(self, ranks: int = 2) -> None:
        """Wait until the ranks of launched.py have come through a step."""
        ran = [self.where / f"ran-{number}" for number in range(ranks)]
        until(lambda: all(path.exists() for path in ran), "the ranks to run")

    def touch(self, name: str) -> None:
        """Make a file that the program looks for."""
        (self.where / name).touch()

    def wait(self) -> int:
        """Its exit code, once it has ended by itself."""
        return self.process.wait(BOUND_S)

    def running(self, part: str) -> list[int]:
        """Its processes that run now, by a part of their command line."""
        return [pid for pid, line in processes(self.token).items() if part in line]

    def only(self, part: str) -> int:
        """The pid of the only one of its processes with this in its command line.

        What is about to become another program shows the command line of its parent
        until then, and a program given by ``-c`` that of what it starts.
        """
        found: list[int] = []

        def alone() -> bool:
            lines = processes(self.token).items()
            found[:] = [pid for pid, line in lines if part in line and " -c " not in line]
            return len(found) == 1

        until(alone, f"a single process of {part}")
        return found[0]

    def until_nothing_runs(self) -> None:
        """Wait until no process of it is left, nor a directory of a run."""
        until(lambda: not processes(self.token), "the end of all processes")
        assert list(self.base.glob("hangwatch-*/*/lock")) == []

    def reports(self) -> list[dict[str, Any]]:
        """report.json of each incident."""
        return read_reports(self.where / "hangwatch-reports")
