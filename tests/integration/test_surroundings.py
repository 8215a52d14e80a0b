"""Odd surroundings: the command behaves as bare in exit code and output, whatever we lose."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
from waiting import BOUND_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HANGWATCH = (sys.executable, "-m", "hangwatch")
SHELL = ("sh", "-c", "echo out; echo err >&2; exit 7")
PYTHON = (sys.executable, "-c", "import os; print(*sorted(os.environ)[:0], 'out'); os._exit(7)")
STREAMS = (
    "sh",
    "-c",
    'for n in 0 1 2; do [ -e /proc/self/fd/$n ] && s="$s $n"; done; echo "open:$s" > seen; exit 7',
)


@dataclass(frozen=True)
class Odd:
    """What is odd; nothing of it where a field is left out."""

    command: tuple[str, ...] = SHELL
    env: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    clean: bool = False
    """Nothing in the environment but PATH."""
    limits: Mapping[int, int] = field(default_factory=dict)
    close: tuple[int, ...] = ()
    where: str = "plain"


CASES = {
    "deleted directory": Odd(where="deleted"),
    "deleted directory and Python": Odd(PYTHON, where="deleted"),
    "deleted directory and a relative base": Odd(where="deleted", env={"HANGWATCH_DIR": "base"}),
    "unwritable directory": Odd(where="unwritable"),
    "deep directory": Odd(where="deep"),
    "very deep directory": Odd(where="very deep"),
    "no HOME": Odd(without=("HOME",)),
    "HOME is a file": Odd(env={"HOME": "/etc/passwd"}),
    "no TMPDIR": Odd(env={"TMPDIR": "/nowhere"}),
    "HANGWATCH_DIR is a file": Odd(env={"HANGWATCH_DIR": "/etc/passwd"}),
    "long HANGWATCH_DIR": Odd(env={"HANGWATCH_DIR": "/" + "/".join(["x" * 200] * 19)}),
    "too long HANGWATCH_DIR": Odd(env={"HANGWATCH_DIR": "/" + "x" * 5000}),
    "no stdin": Odd(STREAMS, close=(0,)),
    "no stdout": Odd(STREAMS, close=(1,)),
    "no stderr": Odd(STREAMS, close=(2,)),
    "no streams": Odd(STREAMS, close=(0, 1, 2)),
    # With 4 no Python starts.
    "5 files": Odd(limits={resource.RLIMIT_NOFILE: 5}),
    "6 files": Odd(limits={resource.RLIMIT_NOFILE: 6}),
    "9 files": Odd(limits={resource.RLIMIT_NOFILE: 9}),
    "16 files": Odd(limits={resource.RLIMIT_NOFILE: 16}),
    "files of no size": Odd(limits={resource.RLIMIT_FSIZE: 0}),
    "files of 4 KiB": Odd(limits={resource.RLIMIT_FSIZE: 4096}),
    "no locked memory": Odd(limits={resource.RLIMIT_MEMLOCK: 0}),
    "48 MiB": Odd(limits={resource.RLIMIT_AS: 48 << 20}),
    "64 MiB": Odd(limits={resource.RLIMIT_AS: 64 << 20}),
    "no queued signals": Odd(limits={resource.RLIMIT_SIGPENDING: 0}),
    "an empty environment": Odd(clean=True),
    "an empty environment and Python": Odd(PYTHON, clean=True),
    "LANG=C": Odd(env={"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    "an unknown locale": Odd(env={"LC_ALL": "xx_XX.nonsense"}),
    "ASCII output": Odd(("sh", "-c", "exit 7", "\xfc\u20ac"), env={"PYTHONIOENCODING": "ascii"}),
    "safe path": Odd(PYTHON, env={"PYTHONSAFEPATH": "1"}),
    "no bytecode": Odd(PYTHON, env={"PYTHONDONTWRITEBYTECODE": "1"}),
    "warnings are errors": Odd(PYTHON, env={"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"}),
    "a startup file": Odd(PYTHON, env={"PYTHONSTARTUP": "/nowhere"}),
    "optimized": Odd(PYTHON, env={"PYTHONOPTIMIZE": "2"}),
    "odd variables": Odd(
        PYTHON, env={"MASTER_ADDR": "", "MASTER_PORT": "x", "RANK": "-1", "WORLD_SIZE": "zero"}
    ),
    "odd variables of ours": Odd(
        PYTHON, env={"PYTHON_HANGWATCH": "%%%", "HANGWATCH_SUPERVISOR_PID": "x"}
    ),
}


def outcome(where: Path, odd: Odd, prefix: tuple[str, ...]) -> tuple[int, bytes, str]:
    """Exit code, standard output, and what the command wrote down of its streams."""
    directory = _made(where / ("watched" if prefix else "bare"), odd)
    env = {"PATH": os.environ["PATH"]} if odd.clean else {**os.environ, **odd.env}
    for name in odd.without:
        env.pop(name)
    done = subprocess.run(  # noqa: S603 (the test's own command)
        [*prefix, *odd.command],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=BOUND_S,
        preexec_fn=partial(_prepare, odd, directory),
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    sys.stderr.write(done.stderr.decode(errors="replace"))
    seen = directory / "seen"
    return done.returncode, done.stdout, seen.read_text() if odd.command is STREAMS else ""


def _made(directory: Path, odd: Odd) -> Path:
    directory.mkdir()
    if odd.where == "deep":
        directory /= "/".join(["x" * 100] * 12)
        directory.mkdir(parents=True)
    return directory


def _prepare(odd: Odd, directory: Path) -> None:
    if odd.where == "deleted":
        directory.rmdir()
    if odd.where == "unwritable":  # for root too
        os.chdir("/proc")
    if odd.where == "very deep":  # longer than any path that can be named
        for _ in range(25):
            os.mkdir("x" * 200)  # noqa: PTH102 (relative to the working directory)
            os.chdir("x" * 200)
    for number, limit in odd.limits.items():
        resource.setrlimit(number, (limit, limit))
    for fd in odd.close:
        os.close(fd)


@pytest.mark.parametrize("name", CASES)
def test_the_command_behaves_as_bare(tmp_path: Path, name: str) -> None:
    odd = CASES[name]
    try:
        bare = outcome(tmp_path, odd, ())
        assert bare[0] == 7
        assert outcome(tmp_path, odd, HANGWATCH) == bare
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_full_shared_memory_is_passed_over(tmp_path: Path) -> None:
    unshare = ("unshare", "--mount", "--propagation", "private")
    if os.geteuid() != 0 or subprocess.run([*unshare, "true"], check=False).returncode:  # noqa: S603
        pytest.skip("mounting takes root")
    script = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$0" -m hangwatch sh -c "exit 7"'
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HANGWATCH")}
    done = subprocess.run(  # noqa: S603 (the test's own command)
        [*unshare, "sh", "-c", script, sys.executable],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 7
    assert ": only 64 KiB free" in done.stderr
    assert "unwatched" not in done.stderr


def test_a_rank_that_can_have_no_page_leaves_nothing_in_its_directory(tmp_path: Path) -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(1), group=dist.new_group([0]))
dist.destroy_process_group()
"""
    where = tmp_path / "work"
    where.mkdir()
    done = subprocess.run(  # noqa: S603 (the test's own command)
        [*HANGWATCH, "--report-dir", str(tmp_path / "reports"), sys.executable, "-c", script],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot instrument a rank" in done.stderr
    assert list(where.iterdir()) == []


def test_what_is_lost_in_a_deleted_directory_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(  # noqa: S603 (the test's own command)
        [*HANGWATCH, *SHELL],
        cwd=gone,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        preexec_fn=gone.rmdir,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "verdicts are shown here only; see --report-dir" in done.stderr


def test_where_no_process_can_be_added_hangwatch_becomes_the_command(tmp_path: Path) -> None:
    script = """
import subprocess, sys
from hangwatch import cli
from hangwatch.launch import command as launch
def refuse(*_, **__):
    raise BlockingIOError(11, "Resource temporarily unavailable")
subprocess.Popen = refuse
sys.exit(cli.main(["sh", "-c", "trap 'exit 9' TERM; kill -TERM $$; exit 7"]))
"""
    done = subprocess.run(  # noqa: S603 (the test's own command)
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 9  # its mask and handlers are its own: the trap ran
    assert "the job runs unwatched, there is not enough for both" in done.stderr
    assert "Traceback" not in done.stderr
