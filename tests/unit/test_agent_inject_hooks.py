"""Permission to be looked at, where Yama restricts it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hangwatch.agent.inject.hooks import allow_supervisor

if TYPE_CHECKING:
    from pathlib import Path

SUPERVISOR = {"HANGWATCH_SUPERVISOR_PID": str(os.getpid())}


@pytest.mark.parametrize("mode", ["0\n", "2\n", "3\n", "", None])
def test_nothing_is_asked_for_where_it_would_not_help(mode: str | None, tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    if mode is not None:
        scope.write_text(mode)
    assert not allow_supervisor(SUPERVISOR, str(scope))


@pytest.mark.parametrize("pid", ["", "x", "-1"])
def test_without_a_supervisor_nobody_is_named(pid: str, tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    scope.write_text("1\n")
    assert not allow_supervisor({"HANGWATCH_SUPERVISOR_PID": pid}, str(scope))


def test_the_supervisor_is_named_and_a_kernel_without_yama_refuses_in_peace(
    tmp_path: Path,
) -> None:
    scope = tmp_path / "ptrace_scope"
    scope.write_text("1\n")
    assert allow_supervisor(SUPERVISOR, str(scope)) in {True, False}


def test_where_supervisors_share_a_watchdog_any_process_is_named(tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    scope.write_text("1\n")
    shared = {"HANGWATCH_SUPERVISOR_PID": "any"}
    assert allow_supervisor(shared, str(scope)) == allow_supervisor(SUPERVISOR, str(scope))
