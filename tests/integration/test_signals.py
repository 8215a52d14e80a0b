"""Every signal, to the supervisor or to its process group, does to COMMAND what it does bare."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import pytest
from waiting import BOUND_S, until

from hangwatch.launch.signals import FORWARDED, JOB_CONTROL
from hangwatch.run import test_hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

To = Literal["pid", "group"]
HANGWATCH = (sys.executable, "-m", "hangwatch")
_NO_WATCHDOG = """
import sys
from hangwatch import cli
from hangwatch.launch import supervisor
supervisor.WatchdogProcess.start = lambda _: None
sys.exit(cli.main(sys.argv[1:]))
"""
NO_WATCHDOG = (sys.executable, "-c", _NO_WATCHDOG)
"""For what the watchdog has no part in, and what is done a hundred times."""
ALL = sorted(int(number) for number in FORWARDED)
IGNORED_BY_DEFAULT = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
NAMES = {int(one): one.name for one in signal.Signals} | {
    number: f"RT{number}" for number in ALL if number >= signal.SIGRTMIN
}
SLEEPS = ("sh", "-c", "echo $$; exec sleep 600")
TELLS = """
import os, signal, time
def heard(number, _):
    os.write(1, b"%d\\n" % number)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, heard)
print("ready", flush=True)
while True:  # what comes just before a sleep is heard after it, and after a pause() never
    time.sleep(0.05)
"""
IGNORES = """
import signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.read()
sys.exit(3)
"""


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on, [] if there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def waits_in(pid: int, number: int) -> bool:
    """Whether a process lives that has a signal to take."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith(("ShdPnd:", "SigPnd:")) and int(line[7:], 16) >> (number - 1) & 1:
                return stat_of(pid)[0] not in "ZX"
    return False


class Job:
    """A command in a process group of its own, bare or under watch."""

    def __init__(self, where: Path, *command: str, hold: str = "") -> None:
        """hold: the moment at which it is to be held."""
        self.moments = where / "moments"
        self.moments.mkdir(exist_ok=True)
        self.held_at = hold
        if hold:
            (self.moments / f"{hold}.hold").touch()
        self.process = subprocess.Popen(  # noqa: S603 (the test's own command)
            command,
            cwd=where,
            env={**os.environ, test_hooks.VARIABLE: str(self.moments)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            text=True,
            preexec_fn=_without_core_dumps,  # noqa: PLW1509 (no threads here)
        )
        self.pid = self.process.pid
        if hold:
            until((self.moments / hold).exists, hold)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()

    def send(self, to: To, number: int) -> None:
        """Send a signal and wait until it was taken, unless the process is held."""
        (os.kill if to == "pid" else os.killpg)(self.pid, number)
        if not self.held_at:
            until(lambda: not waits_in(self.pid, number), f"{number} to be taken")

    def go_on(self) -> None:
        """Hold it no longer."""
        (self.moments / f"{self.held_at}.hold").unlink()
        self.held_at = ""

    def line(self) -> str:
        """The next line of standard output."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """Close its standard input."""
        assert self.process.stdin
        self.process.stdin.close()

    def end(self) -> int:
        """Its exit code, as a shell has it."""
        code = self.process.wait(BOUND_S)
        return code if code >= 0 else 128 - code

    def only_child(self) -> int:
        """The pid of COMMAND: the last word of its command line is not known to the others."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            if stat_of(int(path.name))[1:2] == [str(self.pid)]:
                with suppress(OSError):
                    words = (path / "cmdline").read_bytes().split(b"\0")
                    if not any(b"hangwatch" in word for word in words):
                        found.append(int(path.name))
        (pid,) = found
        return pid


def _without_core_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The tests themselves may run below nohup, which what is started would inherit.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def outcome(where: Path, prefix: Sequence[str], number: int, to: To) -> int:
    """The exit code of a command that handles nothing, sent a signal and then SIGTERM."""
    with Job(where, *prefix, *SLEEPS) as job:
        command = int(job.line())
        job.send(to, number)
        with suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGTERM)
        code = job.end()
        assert not stat_of(command), "the command was left behind"
        return code


@pytest.mark.parametrize("to", ["pid", "group"])
@pytest.mark.parametrize("number", [n for n in ALL if n not in {*JOB_CONTROL}], ids=NAMES.get)
def test_a_signal_has_its_default_action_in_the_command(
    tmp_path: Path, number: int, to: To
) -> None:
    code = outcome(tmp_path, NO_WATCHDOG, number, to)
    assert code == 128 + (signal.SIGTERM if number in IGNORED_BY_DEFAULT else number)
    if number in IGNORED_BY_DEFAULT or number in {signal.SIGXCPU, signal.SIGRTMIN}:
        assert code == outcome(tmp_path, (), number, to)


@pytest.mark.parametrize("prefix", [(), HANGWATCH], ids=["bare", "watched"])
@pytest.mark.parametrize("to", ["pid", "group"])
def test_a_handler_of_the_command_is_called_once_for_each(
    tmp_path: Path, to: To, prefix: Sequence[str]
) -> None:
    with Job(tmp_path, *prefix, sys.executable, "-c", TELLS) as job:
        assert job.line() == "ready"
        for number in ALL:
            job.send(to, number)
            assert int(job.line()) == number
        # Had one come twice, it would come before this.
        job.send("pid", signal.SIGUSR1)
        assert int(job.line()) == signal.SIGUSR1


@pytest.mark.parametrize("to", ["pid", "group"])
def test_a_command_that_ignores_all_of_them_runs_on(tmp_path: Path, to: To) -> None:
    with Job(tmp_path, *HANGWATCH, sys.executable, "-c", IGNORES) as job:
        assert job.line() == "ready"
        for number in ALL:
            job.send(to, number)
        job.close()
        assert job.end() == 3


@pytest.mark.parametrize("to", ["pid", "group"])
@pytest.mark.parametrize("moment", ["supervisor-starting", "supervisor-spawning"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, signal.SIGRTMAX])
def test_what_comes_before_the_command_is_started_ends_it_too(
    tmp_path: Path, number: int, moment: str, to: To
) -> None:
    with Job(tmp_path, *NO_WATCHDOG, "sh", "-c", "sleep 600", hold=moment) as job:
        job.send(to, number)
        job.go_on()
        assert job.end() == 128 + number


@pytest.mark.parametrize("to", ["pid", "group"])
@pytest.mark.parametrize("moment", ["supervisor-spawned", "supervisor-watching"])
def test_what_comes_while_the_watch_begins_reaches_the_command_once(
    tmp_path: Path, moment: str, to: To
) -> None:
    with Job(tmp_path, *HANGWATCH, sys.executable, "-c", TELLS, hold=moment) as job:
        assert job.line() == "ready"
        job.send(to, signal.SIGTERM)
        if to == "group":
            assert int(job.line()) == signal.SIGTERM
        job.go_on()
        if to == "pid":
            assert int(job.line()) == signal.SIGTERM
        job.send("pid", signal.SIGUSR1)
        assert int(job.line()) == signal.SIGUSR1


@pytest.mark.parametrize("to", ["pid", "group"])
@pytest.mark.parametrize("moment", ["supervisor-ended", "supervisor-leaving"])
def test_what_comes_after_the_commands_end_changes_no_exit_code(
    tmp_path: Path, moment: str, to: To
) -> None:
    with Job(tmp_path, *HANGWATCH, "sh", "-c", "exit 3", hold=moment) as job:
        for number in ALL:
            job.send(to, number)
        job.go_on()
        assert job.end() == 3


@pytest.mark.parametrize("to", ["pid", "group"])
@pytest.mark.parametrize("number", sorted(JOB_CONTROL), ids=NAMES.get)
def test_a_job_is_stopped_and_goes_on(tmp_path: Path, number: int, to: To) -> None:
    with Job(tmp_path, *NO_WATCHDOG, "cat") as job:
        until((job.moments / "supervisor-watching").exists, "the start")
        command = job.only_child()
        send = os.kill if to == "pid" else os.killpg
        send(job.pid, number)
        _, status = os.waitpid(job.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert os.WSTOPSIG(status) == number
        assert stat_of(command)[0] == "T"
        send(job.pid, signal.SIGCONT)
        until(lambda: stat_of(command)[0] != "T", "the command to go on")
        job.close()
        assert job.end() == 0


def test_a_stop_before_the_command_is_started_stops_it(tmp_path: Path) -> None:
    with Job(tmp_path, *NO_WATCHDOG, "cat", hold="supervisor-spawning") as job:
        os.kill(job.pid, signal.SIGTSTP)
        job.go_on()
        _, status = os.waitpid(job.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(job.pid, signal.SIGCONT)
        job.close()
        assert job.end() == 0


def test_a_command_that_was_stopped_alone_may_be_woken_alone(tmp_path: Path) -> None:
    with Job(tmp_path, *NO_WATCHDOG, "cat") as job:
        until((job.moments / "supervisor-watching").exists, "the start")
        command = job.only_child()
        for number in (signal.SIGSTOP, signal.SIGTSTP):
            os.kill(command, number)
            until(lambda: stat_of(command)[0] == "T", "the command to stop")
            os.kill(command, signal.SIGCONT)
        job.close()
        assert job.end() == 0


ORPHANS = """
for n in 1 2 3 4 5; do (sh -c 'sleep 0.2; exit 9' &) ; done
until [ "$(cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep)" = 0 ]; do sleep 0.05; done
for try in $(seq 200); do
  zombies=$(grep -h '^State:.*Z' /proc/[0-9]*/status 2>/dev/null | wc -l)
  [ "$zombies" = 0 ] && break
  sleep 0.05
done
echo "zombies $zombies"
exit 7
"""


def first_of_a_container(where: Path, *command: str) -> subprocess.Popen[str]:
    """Hangwatch as process 1."""
    unshare = shutil.which("unshare")
    assert unshare
    how = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    line = (unshare, *how, "--fork", "--pid", "--mount-proc", "--kill-child")
    if subprocess.run([*line, "true"], check=False, capture_output=True).returncode:  # noqa: S603
        pytest.skip("this machine does not allow namespaces")
    return subprocess.Popen(  # noqa: S603 (the test's own command)
        [*line, *HANGWATCH, *command],
        cwd=where,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_the_first_process_of_a_container_collects_orphans(tmp_path: Path) -> None:
    with first_of_a_container(tmp_path, "sh", "-c", ORPHANS) as job:
        out, _ = job.communicate(timeout=BOUND_S)
        assert (job.returncode, out) == (7, "zombies 0\n")


def test_the_first_process_of_a_container_passes_signals_on(tmp_path: Path) -> None:
    with first_of_a_container(tmp_path, sys.executable, "-c", TELLS) as job:
        assert job.stdout
        assert job.stdout.readline() == "ready\n"
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        for number in (signal.SIGTERM, signal.SIGWINCH, signal.SIGURG, signal.SIGRTMIN):
            os.kill(int(children[0]), number)
            assert int(job.stdout.readline()) == number
        job.kill()
