"""Becomes COMMAND with a signal ignored or blocked: inherits.py ignored|blocked|no N WAIT COMMAND.

With WAIT=1 it first waits with default dispositions until there is a file ``begin``: it is
then what a command is that has been started and has not yet begun.
"""

import ctypes
import os
import platform
import signal
import sys
import time

SIGACTION = {"x86_64": 13, "aarch64": 134}
"""Number of rt_sigaction(2), by machine."""
LIBRARYS_OWN = (32, 33)
"""Signals whose disposition the C library changes for nobody.

Yet its posix_spawn(3), by which make starts what it runs, leaves them ignored.
"""


def main():
    how, number, wait = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
    for one in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)
    for one in LIBRARYS_OWN:
        ctypes.CDLL(None).syscall(SIGACTION[platform.machine()], one, bytes(32), None, 8)
    if how == "ignored":
        signal.signal(number, signal.SIG_IGN)
    elif how == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    if wait:
        open("beginning", "w").close()
        while not os.path.exists("begin"):
            time.sleep(0.005)
    os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606


main()
