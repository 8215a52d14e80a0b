"""The supervisor as a process: exit codes, signals, terminal, and the watchdog's life."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from waiting import BOUND_S, in_time, until

from hangwatch.launch import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

HANGWATCH = (sys.executable, "-m", "hangwatch")
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")

LISTENER = f"""
import os, signal, time
def heard(number, _):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
for name in {SIGNALS!r}:
    signal.signal(getattr(signal, name), heard)
print("ready", flush=True)
while True:
    time.sleep(0.05)  # not pause(), which what came just before it does not end
"""
"""Prints the name of each signal that it gets: not by print(), which a signal may interrupt and
which does not let itself be called once more then."""


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on, [] if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return stat_fields(pid)[:1] not in ([], ["Z"], ["X"])


def children(pid: int) -> dict[int, str]:
    """Living children of a process, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and running(int(entry.name)):
            fields = stat_fields(int(entry.name))
            if fields[1:2] == [str(pid)]:
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                found[int(entry.name)] = line
    return found


def pending(pid: int, signum: int) -> bool:
    """Whether a signal waits to be taken by a process."""
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith(("ShdPnd:", "SigPnd:")) and int(line.split()[1], 16) >> (signum - 1) & 1:
            return True
    return False


class Supervised:
    """``python -m hangwatch COMMAND`` in a process group of its own."""

    def __init__(self, where: Path, *command: str) -> None:
        self.errors = where / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(  # noqa: S603 (our own command)
                [*HANGWATCH, *command],
                cwd=where,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()

    def line(self) -> str:
        """The next line of standard output."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def child(self, part: str, but: str = "\0") -> int:
        """The pid of a child whose command line holds part, and not but, once there is one."""
        found: list[int] = []

        def look() -> bool:
            lines = children(self.process.pid)
            found[:] = [pid for pid, line in lines.items() if part in line and but not in line]
            return bool(found)

        until(look, f"a child with {part!r}")
        return found[0]

    def command(self) -> int:
        """The pid of COMMAND (the observer carries its words too)."""
        return self.child("-c \nimport os", but="-m hangwatch")

    def drained(self, signum: int) -> None:
        """Wait until the supervisor has taken a signal."""
        until(lambda: not pending(self.process.pid, signum), f"signal {signum} to be taken")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Supervised]:
    """A command that prints the signals it gets, ready to get them."""
    with Supervised(tmp_path, sys.executable, "-c", LISTENER) as job:
        assert job.line() == "ready"
        yield job


def run(  # noqa: PLR0913 (how a command is started, by keyword)
    where: Path,
    *command: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = HANGWATCH,
    pass_fds: Sequence[int] = (),
    before_exec: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command under hangwatch to its end. env: variables to add."""
    return subprocess.run(  # noqa: S603 (our own commands; no threads here)
        [*prefix, *command],
        cwd=where,
        env={**os.environ, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        pass_fds=pass_fds,
        preexec_fn=before_exec,
        check=False,
    )


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_commands(tmp_path: Path, code: int) -> None:
    assert run(tmp_path, "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_command_ended_by_a_signal_gives_128_and_its_number(
    tmp_path: Path, signum: signal.Signals
) -> None:
    assert run(tmp_path, "sh", "-c", f"kill -{int(signum)} $$").returncode == 128 + signum


@pytest.mark.parametrize(("code", "expected"), [(3, 75), (0, 0)])
def test_a_job_that_failed_after_an_abort_gives_75(
    tmp_path: Path, code: int, expected: int
) -> None:
    script = f'touch "$HANGWATCH_DIR/aborted"; exit {code}'
    assert run(tmp_path, "sh", "-c", script).returncode == expected


def test_standard_input_and_output_belong_to_the_command(tmp_path: Path) -> None:
    done = run(tmp_path, "cat", stdin="a line\nand another")
    assert done.stdout == "a line\nand another"


def test_it_says_one_line_at_the_start_that_names_command_and_reports(tmp_path: Path) -> None:
    done = run(tmp_path, "--run-id", "night-7", "true")
    first, *_ = done.stderr.splitlines()
    assert first.startswith("hangwatch ")
    assert first.endswith(": watching true (reports: hangwatch-reports/night-7)")


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_sent_to_the_supervisor_reaches_the_command_once(
    listener: Supervised, name: str
) -> None:
    signum = signal.Signals[name]
    listener.process.send_signal(signum)
    assert listener.line() == name
    assert next_signal(listener) == "SIGUSR2"


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_sent_to_the_whole_group_reaches_the_command_once(
    listener: Supervised, name: str
) -> None:
    signum = signal.Signals[name]
    os.killpg(listener.process.pid, signum)
    assert listener.line() == name
    listener.drained(signum)
    assert next_signal(listener) == "SIGUSR2"


def next_signal(job: Supervised) -> str:
    """Send SIGUSR2 to the supervisor and return what the command gets next.

    The supervisor takes one signal after the other, so had it forwarded an
    earlier one too often, that one would come first.
    """
    job.process.send_signal(signal.SIGUSR2)
    return job.line()


def test_a_process_by_process_broadcast_reaches_the_command_once(listener: Supervised) -> None:
    command = listener.command()
    others = [pid for pid in children(listener.process.pid) if pid != command]
    for pid in (listener.process.pid, command, *others):
        os.kill(pid, signal.SIGUSR1)
    assert listener.line() == "SIGUSR1"
    listener.drained(signal.SIGUSR1)
    assert next_signal(listener) == "SIGUSR2"


def test_the_command_shares_the_supervisors_process_group(listener: Supervised) -> None:
    assert os.getpgid(listener.command()) == listener.process.pid


def test_ignored_and_blocked_signals_stay_so_in_the_command(tmp_path: Path) -> None:
    show = "grep -E '^Sig(Blk|Ign)' /proc/self/status"

    def start_with_hup_ignored() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGUSR1})

    alone, watched = (
        run(
            tmp_path, "sh", "-c", f"exec {show}", prefix=prefix, before_exec=start_with_hup_ignored
        ).stdout
        for prefix in ((), HANGWATCH)
    )
    assert watched == alone
    assert "SigIgn" in watched


def test_open_files_are_passed_on(tmp_path: Path) -> None:
    read, write = os.pipe()
    with os.fdopen(read) as reader:
        script = f"import os; os.write({write}, b'here')"
        run(tmp_path, sys.executable, "-c", script, pass_fds=(write,))
        os.close(write)
        assert reader.read() == "here"


class Terminal:
    """``python -m hangwatch COMMAND`` as the leader of a session on a new terminal."""

    def __init__(self, where: Path, *command: str) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(where)
            # The tests themselves may run below nohup, which what is started would inherit.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.execv(command[0], command)  # noqa: S606 (the test's own program)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        if running(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def hang_up(self) -> None:
        """Close the terminal, as a lost connection does."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def read_until(self, text: str) -> None:
        """Read what is shown until text has been."""

        def shown() -> bool:
            if text not in self.seen:
                self.seen += os.read(self.master, 4096).decode()
            return text in self.seen

        until(shown, f"{text!r} on the terminal")


def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    with Terminal(tmp_path, *HANGWATCH, sys.executable, "-c", LISTENER) as terminal:
        terminal.read_until("ready")
        os.write(terminal.master, b"\x03")
        terminal.read_until("SIGINT")
        until(lambda: not pending(terminal.pid, signal.SIGINT), "SIGINT to be taken")
        os.kill(terminal.pid, signal.SIGUSR2)
        terminal.read_until("SIGUSR2")
        assert terminal.seen.count("SIGINT") == 1


def test_a_terminal_that_hangs_up_reaches_the_command(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    script = f'trap "echo HUP >> {heard}; exit 0" HUP; echo ready; while :; do sleep 0.05; done'
    with Terminal(tmp_path, *HANGWATCH, "sh", "-c", script) as terminal:
        terminal.read_until("ready")
        terminal.hang_up()
        until(lambda: heard.exists() and heard.read_text(), "SIGHUP in the command")
        assert heard.read_text() == "HUP\n"


def test_a_shell_sees_ctrl_z_stop_the_job_and_resumes_it(tmp_path: Path) -> None:
    job = f"{shlex.join(HANGWATCH)} sh -c 'echo ready; read word; echo got $word'"
    shell = ("/bin/bash", "--norc", "-i", "-c", f"{job}; echo resuming; fg")
    with Terminal(tmp_path, *shell) as terminal:
        terminal.read_until("ready")
        os.write(terminal.master, b"\x1a")
        terminal.read_until("Stopped")
        terminal.read_until("resuming")
        os.write(terminal.master, b"word\n")
        terminal.read_until("got word")


def test_the_watchdog_is_started_again_after_it_was_killed(listener: Supervised) -> None:
    first = listener.child("hangwatch.watchdog")
    os.kill(first, signal.SIGKILL)
    until(lambda: not running(first), "the watchdog to end")
    assert listener.child("hangwatch.watchdog") != first
    assert next_signal(listener) == "SIGUSR2"
    said = listener.errors.read_text()
    assert said.count("was killed by signal 9") == 1


def test_the_watchdog_is_out_of_reach_of_the_jobs_signals(listener: Supervised) -> None:
    watchdog = listener.child("hangwatch.watchdog")
    assert os.getsid(watchdog) == watchdog
    assert os.getpgid(watchdog) != os.getpgid(listener.process.pid)


@pytest.mark.parametrize("first", ["nobody", "the watchdog", "the observer"])
def test_the_command_outlives_a_supervisor_that_was_killed(
    listener: Supervised, first: str
) -> None:
    supervisor = listener.process.pid
    command = listener.command()
    watchdog = listener.child("hangwatch.watchdog")
    others = [pid for pid in children(supervisor) if pid != command]
    variables = Path(f"/proc/{command}/environ").read_bytes().split(b"\0")
    (run_dir,) = [Path(os.fsdecode(v[14:])) for v in variables if v.startswith(b"HANGWATCH_DIR=")]
    until((run_dir / "watchdog.json").exists, "the watchdog to look")
    os.kill(supervisor, signal.SIGSTOP)
    for pid in others:
        if first == ("the watchdog" if pid == watchdog else "the observer"):
            os.kill(pid, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)
    listener.process.wait()
    until(lambda: not any(map(running, others)), "the watchdog to end")
    until(lambda: not run_dir.exists(), "its directory to be removed")
    os.kill(command, signal.SIGUSR1)
    assert listener.line() == "SIGUSR1"
    os.kill(command, signal.SIGKILL)


@pytest.mark.parametrize(
    "broken",
    [
        "rundir.make",
        "GroupObserver",
        "introduce",
        "WatchdogProcess.start",
        "WatchdogProcess.check",
        "WatchdogProcess.command_ended",
    ],
)
def test_an_error_that_nobody_has_thought_of_costs_only_the_watch(
    tmp_path: Path, broken: str
) -> None:
    script = f"""
import sys
from hangwatch import cli
from hangwatch.launch import supervisor
def fail(*_, **__):
    raise RuntimeError("nobody has thought of this")
supervisor.{broken} = fail
sys.exit(cli.main(["sh", "-c", "sleep 0.2; echo done; exit 7"]))
"""
    done = run(tmp_path, script, prefix=(sys.executable, "-c"))
    assert (done.returncode, done.stdout) == (7, "done\n")
    assert done.stderr.count("RuntimeError: nobody has thought of this") == 1


def test_an_impatient_user_need_not_wait_for_a_watchdog_that_is_stuck(
    listener: Supervised,
) -> None:
    os.kill(listener.child("hangwatch.watchdog"), signal.SIGSTOP)
    os.kill(listener.command(), signal.SIGKILL)
    until(lambda: len(children(listener.process.pid)) == 2, "the command to be reaped")
    began = time.monotonic()
    while listener.process.poll() is None:  # the first ones may still be meant for the command
        listener.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    in_time(began, timing.CONCLUDE_S / 2)
    assert listener.process.returncode == 128 + signal.SIGKILL
    assert "the watchdog was still at work" in listener.errors.read_text()


def test_nothing_is_left_in_shared_memory_after_the_end(tmp_path: Path) -> None:
    done = run(tmp_path, "sh", "-c", 'echo "$HANGWATCH_DIR"')
    assert done.stdout.strip()
    assert not Path(done.stdout.strip()).exists()


def test_without_hangwatch_the_command_runs_as_if_it_were_not_there(tmp_path: Path) -> None:
    script = 'echo "[$HANGWATCH_DIR]"; exit 5'
    off = {"HANGWATCH": "0", "HANGWATCH_ON_HANG": "nonsense"}
    done = run(tmp_path, "--hang-after", "9", "sh", "-c", script, env=off)
    assert (done.returncode, done.stdout, done.stderr) == (5, "[]\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["no-such-program-anywhere"], "command not found"),
        (["./no-such-file"], "no such command"),
        (["/"], "is a directory"),
        (["./plain.py"], "did you mean `python ./plain.py`?"),
        (["plain.py"], "did you mean `python plain.py`?"),
        (["./binary"], "is not a program"),
        (["--hang-after", "soon", "true"], "use a number of seconds, or auto"),
        (["--hang-aftr", "3", "true"], "did you mean --hang-after?"),
        (["--hang-after"], "needs a value"),
        (["--suspect-after", "9", "--hang-after", "3", "true"], "is suspected before"),
        (["--on-hang", "explode", "true"], "use one of report, abort"),
        (["--run-id", "../up", "true"], "use letters"),
        (["--hook", "notify 'ops", "true"], "it cannot be parsed (no closing quotation)"),
        (["--hook", " ", "true"], "name the command to run at a verdict"),
        (["--verbose=2", "true"], "use 0 or 1"),
        ([], "name the COMMAND"),
        (["run", "--"], "name the COMMAND"),
        (["report", "x", "y"], "see hangwatch report --help"),
        (["report", "nowhere"], "does not exist"),
    ],
)
def test_what_makes_no_sense_is_answered_in_one_line_with_exit_code_2(
    tmp_path: Path, command: list[str], hint: str
) -> None:
    (tmp_path / "plain.py").write_text("print('not executable')\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x00\x01\x02")
    binary.chmod(0o755)
    done = run(tmp_path, *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert hint in done.stderr
    assert not (tmp_path / "hangwatch-reports").exists()


@pytest.mark.parametrize(
    ("hook", "why"), [("./nowhere --to ops", "no such program"), ("./plain.sh", "not executable")]
)
def test_a_hook_that_could_not_be_run_is_said_at_the_start_and_the_job_runs(
    tmp_path: Path, hook: str, why: str
) -> None:
    (tmp_path / "plain.sh").write_text("echo not executable\n")
    done = run(tmp_path, "--hook", hook, "sh", "-c", "echo mine")
    assert (done.returncode, done.stdout) == (0, "mine\n")
    (line,) = [line for line in done.stderr.splitlines() if "--hook" in line]
    assert why in line
    assert "the job runs" in line


def test_a_command_named_like_one_of_ours_runs_after_run(tmp_path: Path) -> None:
    program = tmp_path / "report"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run(tmp_path, "run", "--", "report", env={"PATH": path})
    assert done.stdout == "mine\n"
