"""Where the ranks of a node meet on which nobody has wrapped their command."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hangwatch
from hangwatch.agent import environment
from hangwatch.agent.inject import unwrapped
from hangwatch.agent.inject.rank import is_launcher, named_run
from hangwatch.run.rundir import LOCK
from hangwatch.run.shared_run import WATCH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

PACKAGE = str(Path(hangwatch.__file__).parent)
STORE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def meet(environ: dict[str, str], meeting: str = "") -> str:
    rank = unwrapped.Unwrapped(environ)
    directory = rank.join(meeting)
    rank.see_to_watch(wanted=False)
    return directory


def test_ranks_of_one_job_meet_and_those_of_another_do_not(tmp_path: Path) -> None:
    base = {"HANGWATCH_DIR": str(tmp_path)}
    ranks = [{**base, **STORE, "RANK": str(rank)} for rank in range(3)]
    assert len({meet(environ) for environ in ranks}) == 1
    others = [{**base, **STORE, "MASTER_PORT": "29501"}, {**ranks[0], "HANGWATCH_RUN_ID": "other"}]
    assert len({meet(environ) for environ in (ranks[0], *others)}) == 3


def test_ranks_that_no_environment_tells_of_meet_by_their_url_or_their_parent(
    tmp_path: Path,
) -> None:
    base = {"HANGWATCH_DIR": str(tmp_path)}
    url = "tcp://10.0.0.1:29500"
    assert meet(base, url) == meet(base, url) != meet(base)
    assert meet(base) == meet(base)


def test_the_directory_of_a_run_on_another_node_is_no_place_here(tmp_path: Path) -> None:
    there = tmp_path / "run-of-another-node"
    environ = {"HANGWATCH_DIR": str(there), environment.SUPERVISOR_PID: "1", **STORE}
    assert environment.wrapped_in(environ) == ""
    assert not meet(environ).startswith(str(tmp_path))
    there.mkdir()
    assert environment.wrapped_in(environ) == str(there)


def _raises_timeout(_signal: int, _frame: object) -> None:
    raise TimeoutError("the program's own")


# Where it strikes between the end of a with block and the close of its file.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_an_alarm_of_the_program_raises_reaches_it_wherever_it_strikes(
    tmp_path: Path,
) -> None:
    base = {"HANGWATCH_DIR": str(tmp_path), "PYTHONPATH": "/nowhere"}

    def lines_until(number: int) -> int:
        """Meet in a new directory, with the alarm at that line of ours; how many there were."""
        passed = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal passed
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            if event == "line":
                passed += 1
                if passed == number:
                    signal.raise_signal(signal.SIGALRM)
            return trace

        # A trace function that raises amid the end of a with block leaves the exception that
        # was handled there in the state of the thread, or in that of a generator.
        def steps() -> Iterator[object]:
            yield meet({**base, "HANGWATCH_RUN_ID": f"run-{number}"})
            yield environment.outside_environment(base)

        sys.settrace(trace)
        try:
            list(steps())
        finally:
            sys.settrace(None)
        return passed

    before = signal.signal(signal.SIGALRM, _raises_timeout)
    try:
        lines = lines_until(0)
        for number in range(1, lines + 1):
            with pytest.raises(TimeoutError, match="the program's own"):
                lines_until(number)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert lines > 100


def test_a_base_that_the_user_has_set_is_no_run(tmp_path: Path) -> None:
    assert environment.wrapped_in({"HANGWATCH_DIR": str(tmp_path)}) == ""


def test_what_a_supervisor_was_told_arrives_where_only_its_word_was_carried(
    tmp_path: Path,
) -> None:
    word = environment.packed({"run_dir": str(tmp_path), "config": {"run_id": "night"}})
    assert not set(word) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-=")
    environ = {environment.CARRIED: word}
    assert environment.wrapped_in(environ) == str(tmp_path)
    assert named_run(environ) == "night"
    assert named_run({**environ, "HANGWATCH_RUN_ID": "day"}) == "day"


@pytest.mark.parametrize("word", ["", "x", "\N{SNOWMAN}", "bnVsbA==", "eyJjb25maWciOiA3fQ=="])
def test_a_word_that_was_damaged_on_its_way_tells_nothing(word: str) -> None:
    environ = {environment.CARRIED: word}
    assert environment.wrapped_in(environ) == ""
    assert named_run(environ) == ""


def test_whoever_has_the_watch_is_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = unwrapped.Unwrapped({"HANGWATCH_DIR": str(tmp_path), **STORE})
    directory = Path(rank.join())
    monkeypatch.setattr(os, "posix_spawn", None)  # whoever calls it fails
    with (directory / WATCH).open("w") as watch:
        fcntl.flock(watch, fcntl.LOCK_EX)
        rank.see_to_watch(wanted=True)
    with (directory / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nothing is held


def test_the_watch_runs_where_hangwatch_is_installed(tmp_path: Path) -> None:
    assert unwrapped.interpreter("/src/hangwatch/hangwatch") == sys.executable
    package = tmp_path / "lib/python3.12/site-packages/hangwatch"
    assert unwrapped.interpreter(str(package)) == sys.executable
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.touch(mode=0o755)
    assert unwrapped.interpreter(str(package)) == str(python)


@pytest.mark.parametrize(
    ("words", "launcher"),
    [
        (["python", "/usr/bin/torchrun", "train.py"], True),
        (["python", "-u", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "-X", "dev", "/usr/bin/accelerate", "launch", "train.py"], True),
        (["python", "-m", "deepspeed.launcher.launch", "train.py"], True),
        (["python", "-mtorch.distributed.run"], True),
        (["python", "train.py", "torchrun"], False),
        (["python", "-m", "train"], False),
        (["python", "-u", "train.py", "-m", "torch.distributed.run"], False),
        (["python", "-c", "import torch"], False),
        (["python"], False),
    ],
)
def test_a_launcher_is_known_by_its_command_line(words: list[str], *, launcher: bool) -> None:
    assert is_launcher(words) is launcher
