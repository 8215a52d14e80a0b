"""``python -m hangwatch.watchdog``, started by the supervisor alone.

Standard input is the supervisor's pipe (run/handshake.py), standard error the job's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

from hangwatch.console import say
from hangwatch.errors import UNUSABLE

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Meant for the job; the watchdog ends with the supervisor's pipe."""
STDERR = 2


def main() -> int:
    """Run the watchdog; the exit code is for the supervisor alone."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # The parent of the supervisor may have blocked or ignored them; without SIGCHLD the end of
    # a py-spy is not noticed.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        from hangwatch.watchdog.daemon import serve  # noqa: PLC0415 (what it needs may be missing)
    except ImportError as error:
        say(f"the job is not watched: {error}; reinstall hangwatch and its dependencies")
        return UNUSABLE
    except OSError as error:
        say(f"the watchdog cannot load what it needs: {error}")
        return 1
    stderr_fd = _own_stderr()
    loop, notes = _loop()
    with asyncio.Runner(loop_factory=loop) as runner:
        code = runner.run(serve(stderr_fd, notes))
        # A thread may be stuck in a store or a file system that is gone: the
        # interpreter would meet it again on its way out.
        os._exit(code)


def _own_stderr() -> int:
    """Keep the job's standard error for news; the output of libraries goes to a nameless file.

    With -v it goes to the job's standard error again (serve).
    """
    try:
        kept = os.dup(STDERR)
    except OSError:  # it is closed, and the next file that is opened would take its number
        kept = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError), tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), STDERR)
    return kept


def _loop() -> tuple[Callable[[], asyncio.AbstractEventLoop], tuple[str, ...]]:
    """Return the factory of the event loop, and notes: why it is not uvloop's."""
    try:
        import uvloop  # noqa: PLC0415 (absent where it could not be built)
    except ImportError as error:
        return asyncio.new_event_loop, (f"uvloop is not used: {error}",)
    return uvloop.new_event_loop, ()


if __name__ == "__main__":
    sys.exit(main())
