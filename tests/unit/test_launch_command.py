"""What is said of commands that cannot be started, and of long ones."""

from __future__ import annotations

import errno
import os
import signal

import pytest

from hangwatch.errors import UsageError
from hangwatch.launch.command import Signals, refusal, start
from hangwatch.launch.supervisor import exit_code
from hangwatch.launch.watchdog_process import COMMAND_BYTES, shortened


def test_a_nul_in_an_argument_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="null byte"):
        start(["true", "a\0b"], os.environ, Signals(set(), signal.SIG_DFL))


def test_another_file_than_the_command_is_named() -> None:
    error = OSError(errno.ENOENT, "No such file or directory", "/gone/cwd")
    assert refusal(["train"], error, {}) == "/gone/cwd: No such file or directory"


def test_an_odd_error_is_said_as_the_system_says_it() -> None:
    error = OSError(errno.E2BIG, "Argument list too long", "train")
    assert refusal(["train"], error, {}) == "train cannot be started: Argument list too long"


def test_a_file_that_is_not_executable_is_told_from_a_script() -> None:
    error = OSError(errno.EACCES, "Permission denied", "./tool")
    assert "chmod +x" in refusal(["./tool"], error, {})


def test_a_command_line_that_is_too_long_to_tell_is_cut() -> None:
    long = ["torchrun", "a" * COMMAND_BYTES, "b"]
    assert shortened(long) == ("torchrun", "...")
    assert shortened(["torchrun", "train.py"]) == ("torchrun", "train.py")


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_a_signal_gives_the_exit_code_that_a_shell_gives(returncode: int, code: int) -> None:
    assert exit_code(returncode) == code
