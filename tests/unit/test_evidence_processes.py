"""What the watchdog reads from /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hangwatch.evidence import environment, processes
from hangwatch.evidence.processes import Tree, alive, command_line, process_state, read_stat, takes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def fake_process(  # noqa: PLR0913 (a process has many sides)
    proc: Path,
    pid: int,
    ppid: int = 1,
    *,
    comm: str = "python",
    state: str = "S",
    ticks: int = 0,
    variables: Mapping[str, str] | None = None,
) -> None:
    directory = proc / str(pid)
    directory.mkdir(exist_ok=True)
    used = [str(ticks), "0", "0", "0"]
    fields = [state, str(ppid), *["0"] * 9, *used, *["0"] * 4, str(1000 + pid), *["0"] * 29, "9"]
    (directory / "stat").write_text(f"{pid} ({comm}) {' '.join(fields)}\n")
    environ = "\0".join(f"{name}={value}" for name, value in (variables or {}).items())
    (directory / "environ").write_text(environ + "\0")
    (directory / "cmdline").write_text("python\0train.py\0")
    (directory / "status").write_text("Name:\tpython\nTracerPid:\t77\n")
    (directory / "wchan").write_text("futex_do_wait")


def rank(number: int) -> dict[str, str]:
    return {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "4"}


def test_reads_its_own_process() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert stat.ppid == os.getppid()
    assert alive(os.getpid(), stat.start_ticks)
    assert process_state(os.getpid(), stat.start_ticks).alive


def test_a_command_name_may_hold_anything(tmp_path: Path) -> None:
    fake_process(tmp_path, 5, comm="a) S (b c")
    stat = read_stat(5, str(tmp_path))
    assert stat is not None
    assert (stat.comm, stat.state, stat.ppid, stat.start_ticks) == ("a) S (b c", "S", 1, 1005)
    assert stat.exit_status == 9


@pytest.mark.parametrize("text", ["", "5", "5 (x) ", "5 (x) S one", ") S ("])
def test_an_odd_stat_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    fake_process(tmp_path, 5)
    (tmp_path / "5" / "stat").write_text(text)
    assert read_stat(5, str(tmp_path)) is None


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    fake_process(tmp_path, 5)
    assert alive(5, 1005, str(tmp_path))
    assert not alive(5, 1004, str(tmp_path))
    assert not process_state(5, 1004, str(tmp_path)).alive


def test_state_tells_where_a_process_sleeps_and_who_traces_it(tmp_path: Path) -> None:
    fake_process(tmp_path, 5, state="t")
    state = process_state(5, 1005, str(tmp_path))
    assert (state.state, state.wchan, state.tracer_pid) == ("t", "futex_do_wait", 77)


def test_a_zombie_is_not_alive(tmp_path: Path) -> None:
    fake_process(tmp_path, 5, state="Z")
    assert not process_state(5, 1005, str(tmp_path)).alive


def test_ranks_are_those_whose_parent_has_no_rank(tmp_path: Path) -> None:
    fake_process(tmp_path, 10)
    fake_process(tmp_path, 11, 10, variables=rank(0))
    fake_process(tmp_path, 12, 10, variables=rank(1))
    fake_process(tmp_path, 13, 12, variables=rank(1))  # its data worker
    fake_process(tmp_path, 14, 1, variables=rank(2))  # of another job
    found = Tree(str(tmp_path)).launched_ranks(10)
    assert [(one.pid, one.rank, one.world_size) for one in found] == [(11, 0, 4), (12, 1, 4)]


def test_a_launcher_that_inherited_a_rank_is_none_itself(tmp_path: Path) -> None:
    fake_process(tmp_path, 10, variables={"RANK": "0"})
    fake_process(tmp_path, 11, 10, variables=rank(0))
    fake_process(tmp_path, 12, 10, variables=rank(1))
    assert [one.pid for one in Tree(str(tmp_path)).launched_ranks(10)] == [11, 12]


def test_the_command_itself_may_be_a_rank(tmp_path: Path) -> None:
    fake_process(tmp_path, 10, variables=rank(3))
    fake_process(tmp_path, 11, 10, variables=rank(3))
    assert [one.pid for one in Tree(str(tmp_path)).launched_ranks(10)] == [10]


@pytest.mark.parametrize("value", ["", "-1", "one", "²", "1.0"])
def test_a_rank_that_is_no_number_is_none(tmp_path: Path, value: str) -> None:
    fake_process(tmp_path, 10, variables={"RANK": value})
    assert Tree(str(tmp_path)).launched_ranks(10) == ()


def test_a_machine_without_proc_has_no_processes(tmp_path: Path) -> None:
    tree = Tree(str(tmp_path / "none"))
    assert tree.launched_ranks(1) == ()
    assert not tree.children(1)


def test_the_processors_in_use_are_those_of_all_below(tmp_path: Path) -> None:
    clock = iter([100.0, 102.0, 104.0])

    def tree() -> Tree:
        return Tree(str(tmp_path), clock.__next__)

    hertz = os.sysconf("SC_CLK_TCK")
    fake_process(tmp_path, 10, ticks=5 * hertz)
    fake_process(tmp_path, 11, 10, ticks=hertz)
    fake_process(tmp_path, 20, ticks=hertz)
    before = tree()
    fake_process(tmp_path, 10, ticks=6 * hertz)
    fake_process(tmp_path, 12, 11, ticks=2 * hertz)
    after = tree()
    assert after.processors(10, before) == 1.5
    assert after.processors(20, before) == 0.0
    shutil.rmtree(tmp_path / "12")  # with it goes what it had used, until it is waited for
    assert tree().processors(10, after) == 0.0


def test_a_process_that_works_keeps_a_processor_busy() -> None:
    before, spent = Tree(), time.process_time()
    while time.process_time() < spent + 0.1:
        sum(range(10_000))
    assert Tree().processors(os.getpid(), before) > 0.0


def test_finds_real_descendants() -> None:
    script = (
        "import subprocess, sys; "
        "subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    )
    with subprocess.Popen(  # noqa: S603 (our own Python)
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        (child,) = Tree().descendants(parent.pid)
        assert child.ppid == parent.pid
        assert "input()" in command_line(child.pid)
        parent.communicate(b"\n")


def test_a_long_command_line_is_shortened(tmp_path: Path) -> None:
    fake_process(tmp_path, 5)
    (tmp_path / "5" / "cmdline").write_text("x" * 5000)
    assert len(command_line(5, str(tmp_path))) == processes.COMMAND_CHARS


def test_only_wanted_variables_are_kept(tmp_path: Path) -> None:
    variables = {
        "MASTER_ADDR": "node0",
        "NCCL_DEBUG": "INFO",
        "NCCL_AUTH_TOKEN": "hush",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "HOME": "/home/me",
        "TORCHELASTIC_RUN_ID": "x" * 1000,
    }
    fake_process(tmp_path, 5, variables=variables)
    found = environment.job_environment(5, str(tmp_path))
    assert list(found) == ["MASTER_ADDR", "NCCL_DEBUG", "TORCHELASTIC_RUN_ID"]
    assert len(found["TORCHELASTIC_RUN_ID"]) < 1000


def test_the_version_of_a_loaded_torch_is_found(tmp_path: Path) -> None:
    proc, torch = tmp_path / "proc", tmp_path / "site-packages" / "torch"
    (proc / "5").mkdir(parents=True)
    torch.mkdir(parents=True)
    (proc / "5" / "maps").write_text(f"7f00-7f01 r-xp 00 08:01 99   {torch}/lib/libtorch_cpu.so\n")
    (torch / "version.py").write_text("debug = False\n__version__ = '2.13.0+cpu'\n")
    assert environment.torch_version(5, str(proc)) == "2.13.0+cpu"
    assert environment.torch_version(6, str(proc)) == ""


@pytest.mark.parametrize(
    ("blocked", "wchan", "taken"),
    [
        (1 << 14, "futex_wait_queue", True),
        (0, "do_sigtimedwait", True),
        (0, "futex_wait_queue", False),
        (0, "0", True),  # it runs, and may just be about to wait
    ],
)
def test_who_does_something_of_its_own_with_a_signal(
    tmp_path: Path, blocked: int, wchan: str, *, taken: bool
) -> None:
    thread = tmp_path / "10" / "task" / "10"
    thread.mkdir(parents=True)
    (tmp_path / "10" / "status").write_text("SigCgt:\t0000000000000000\n")
    (thread / "status").write_text(f"SigBlk:\t{blocked:016x}\n")
    (thread / "wchan").write_text(wchan)
    assert takes(10, signal.SIGTERM, str(tmp_path)) is taken


def test_the_last_word_of_a_command_line_that_was_cut_is_not_shown(tmp_path: Path) -> None:
    fake_process(tmp_path, 5)
    before = "python\0--pad\0"
    words = f"{before}{'x' * (processes.COMMAND_BYTES - len(before) - 8)}\0--api_key=sk-live-1234"
    (tmp_path / "5" / "cmdline").write_text(words)
    assert processes.command_words(5, str(tmp_path))[-1] == "…"
