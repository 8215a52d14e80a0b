"""Becomes a command in odd circumstances: start.py JSON PYTHON [ARGUMENT...].

What the JSON may hold: ``cwd`` (made and entered; ``deep``: so many directories below it;
``mode``: its permissions; ``gone``: it is removed), ``unset`` (variables), ``limits`` (name to
number), ``close`` (file descriptors), ``open`` (a number of them), ``umask``, ``nice``, ``idle``
(of I/O), ``block`` (all signals), ``ignore`` (signals), ``plain`` (without root's right to all
files), ``python`` (options of the interpreter), ``mount`` (directory to size in bytes of an
empty tmpfs, 0: read-only), ``stderr`` (``full``: a pipe that nobody empties, ``busy``: the same,
which says so; ``broken``, ``device``: /dev/full), ``terminal``. Exits with 222 where the machine
does not allow it.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import resource
import signal
import sys
import termios

REFUSED = 222
CLONE_NEWNS, MS_RDONLY, MS_REC, MS_PRIVATE = 0x20000, 1, 0x4000, 0x40000
PR_CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
IDLE = 3 << 13

libc = ctypes.CDLL(None, use_errno=True)


def main():
    told = json.loads(sys.argv[1])
    python, *command = sys.argv[2:]
    for name in told.get("unset", ()):
        os.environ.pop(name, None)
    places(told)
    streams(told)
    process(told)
    for fd in told.get("close", ()):
        with contextlib.suppress(OSError):
            os.close(fd)
    os.execvp(python, [python, *told.get("python", ()), *command])  # noqa: S606 (no shell)


def places(told):
    if "mount" in told:
        mount(told["mount"])
    if "cwd" in told:
        enter(told)
    if told.get("plain"):
        for right in (DAC_OVERRIDE, DAC_READ_SEARCH):
            libc.prctl(PR_CAPBSET_DROP, right, 0, 0, 0)


def streams(told):
    if told.get("terminal"):
        take_terminal()
    if "stderr" in told:
        os.dup2(strange_stderr(told["stderr"]), 2)
    for _ in range(told.get("open", 0)):
        inherit(os.open("/dev/null", os.O_RDONLY))


def process(told):
    if told.get("idle"):
        libc.syscall(IOPRIO_SET[os.uname().machine], 1, 0, IDLE)
    os.nice(told.get("nice", 0))
    ignored = told.get("ignore", ())
    for name in ignored:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    for name in {"SIGPIPE", "SIGXFSZ"}.difference(ignored):  # which this interpreter ignores
        signal.signal(signal.Signals[name], signal.SIG_DFL)
    if told.get("block"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for name, limit in told.get("limits", {}).items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    os.umask(told.get("umask", 0o022))


def inherit(fd):
    fcntl.fcntl(fd, fcntl.F_SETFD, 0)


def enter(told):
    os.makedirs(told["cwd"], exist_ok=True)
    os.chdir(told["cwd"])
    for _ in range(told.get("deep", 0)):
        os.makedirs("d" * 200, exist_ok=True)
        os.chdir("d" * 200)
    if "mode" in told:
        os.chmod(".", told["mode"])
    if told.get("gone"):
        os.rmdir(told["cwd"])


def mount(places):
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        sys.exit(REFUSED)
    for place, size in places.items():
        how = b"" if size == 0 else b"size=%d" % size
        flags = 0 if size else MS_RDONLY
        if libc.mount(b"campaign", os.fsencode(place), b"tmpfs", flags, how):
            sys.exit(REFUSED)


def take_terminal():
    ours, theirs = pty.openpty()
    inherit(ours)
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    os.dup2(theirs, 0)


def strange_stderr(how):
    if how == "device":
        return os.open("/dev/full", os.O_WRONLY)
    out, into = os.pipe()
    if how == "broken":
        os.close(out)
        return into
    inherit(out)
    os.set_blocking(into, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(into, b"x" * 4096)
    os.set_blocking(into, how == "full")
    return into


main()
