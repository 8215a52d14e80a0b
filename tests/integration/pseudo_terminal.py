"""Runs a command in a pseudo-terminal, as in a window of a given size."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from waiting import BOUND_S, NoAnswerError

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>78])")
_FRAME = "\x1b[H"
"""Where rich begins a screen anew."""
ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A command and the terminal that it runs in."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], columns: int, lines: int
    ) -> None:
        self._master, slave = os.openpty()
        self.resize(columns, lines)
        told = {key: value for key, value in env.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(  # noqa: S603 (the command is the test's own)
            command,
            env={**told, "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (no threads)
        )
        os.close(slave)
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def resize(self, columns: int, lines: int) -> None:
        """Give it another size; the command gets SIGWINCH."""
        self._lines = lines
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command."""
        self.process.send_signal(number)

    def until(self, holds: Callable[[list[str]], bool], bound_s: float = BOUND_S) -> list[str]:
        """Read until a whole frame fulfils a condition, and return its lines."""
        deadline = time.monotonic() + bound_s
        while time.monotonic() < deadline and (self._read(0.1) or self.process.poll() is None):
            for frame in self._frames()[-3:]:
                if holds(frame):
                    return frame
        raise NoAnswerError(f"nothing of the kind in:\n{self.output[-6000:]}")

    def wait(self, bound_s: float = BOUND_S) -> tuple[int, list[str]]:
        """Until it has ended: its exit code, and what it left on the normal screen."""
        deadline = time.monotonic() + bound_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)
        while self._read(0.0):
            pass
        code = self.process.wait(1)
        return code, plain(self.output.rpartition(NORMAL)[2]).splitlines()

    def _frames(self) -> list[list[str]]:
        """The frames that have come whole: rich fills the screen down to its last line."""
        screen = self.output.rpartition(ALTERNATE)[2].partition(NORMAL)[0]
        frames = [plain(frame).split("\n") for frame in screen.split(_FRAME)[1:]]
        whole = [frame for frame in frames if len(frame) == self._lines and frame[-1]]
        return [[line.rstrip() for line in frame] for frame in whole]

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._master], [], [], wait_s)[0]:
            return False
        with suppress(OSError):  # EIO: nobody has the other end any more
            data = os.read(self._master, 1 << 16)
            self.output += data.decode("utf-8", "replace")
            return bool(data)
        return False


def plain(text: str) -> str:
    """Text without escape sequences."""
    return _ESCAPE.sub("", text).replace("\r", "")
