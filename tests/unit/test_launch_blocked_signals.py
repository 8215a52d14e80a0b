"""Blocked signals are waited for, and a process that is stopped meanwhile makes none up.

Each in a process of its own, which has but one thread, as the supervisor has.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

BEGINNING = """
import os, resource, signal, subprocess, time
from hangwatch.launch.signals import wait_for
SIGNALS = signal.valid_signals() - {signal.SIGCONT}
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
"""
TAKEN = """
os.kill(os.getpid(), NUMBER)
info = wait_for(SIGNALS, 0)
assert (info.si_signo, info.si_pid) == (NUMBER, os.getpid()), info
sender = subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -{NUMBER} {os.getpid()}"])
info = wait_for(SIGNALS - {signal.SIGCHLD}, 60)
assert (info.si_signo, info.si_pid) == (NUMBER, sender.pid), info
sender.wait()
"""
IN_VAIN = """
began = time.monotonic()
assert wait_for(SIGNALS, 0.1) is None
assert time.monotonic() - began >= 0.1
"""
WITHOUT_FILES = """
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
assert wait_for(SIGNALS, 0.1) is None
os.kill(os.getpid(), signal.SIGUSR1)
assert wait_for(SIGNALS, 60).si_signo == signal.SIGUSR1
"""
STOPPED = """
os.kill(os.getpid(), signal.SIGTERM)
assert wait_for(SIGNALS, 60).si_signo == signal.SIGTERM  # and this lies on the stack now
print("ready", flush=True)
print(wait_for(SIGNALS, 0.2), flush=True)
"""


def program(text: str) -> list[str]:
    return [sys.executable, "-c", BEGINNING + text]


@pytest.mark.parametrize("number", [int(signal.SIGUSR1), int(signal.SIGRTMAX)])
def test_what_is_there_or_comes_is_taken(number: int) -> None:
    subprocess.run(program(f"NUMBER = {number}\n{TAKEN}"), check=True)  # noqa: S603 (the test's own)


@pytest.mark.parametrize("text", [IN_VAIN, WITHOUT_FILES], ids=["in vain", "without files"])
def test_nothing_comes_in_time(text: str) -> None:
    subprocess.run(program(text), check=True)  # noqa: S603 (the test's own)


def test_a_process_that_was_stopped_makes_up_no_signal() -> None:
    with subprocess.Popen(program(STOPPED), stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "None\n"
