"""Starts COMMAND as an interactive shell starts a job, and tells of each time that it stops.

    shell.py COMMAND [ARG...]

COMMAND gets a process group of its own in the session of this process, so that it can be
stopped by job control. Its pid is left in ``pid-leader``; each stop is a line of
out-stops; the exit code is COMMAND's, 128+n for signal n.
"""

import os
import sys


def main():
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606
    with open(".pid-leader", "w") as file:
        file.write(str(child))
    os.rename(".pid-leader", "pid-leader")
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else 128 - code)
        with open("out-stops", "a") as file:
            file.write(f"stopped by {os.WSTOPSIG(status)}\n")


main()
