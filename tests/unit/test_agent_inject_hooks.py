"""Permission to be looked at where Yama restricts it, and what a call of new_group asks for."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.agent.inject.hooks import allow_supervisor, new_group

if TYPE_CHECKING:
    from collections.abc import Iterator
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


C10D = SimpleNamespace(
    _world=SimpleNamespace(default_pg=SimpleNamespace(size=lambda: 4), group_count=3)
)


def function(
    ranks: Any = None,
    timeout: Any = None,
    backend: Any = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,  # noqa: FBT001, FBT002 (as torch has it)
) -> None:
    """As torch has it."""


def asked(*args: Any, **kwargs: Any) -> Any:
    return new_group(C10D, function, args, kwargs)


@pytest.mark.parametrize("ranks", [[2, 0], (2, 0), range(0, 4, 2)])
def test_ranks_are_those_of_the_call(ranks: Any) -> None:
    assert asked(ranks) == asked(ranks=ranks, timeout=3) == (3, [0, 2])


def test_without_ranks_it_is_for_all() -> None:
    assert asked() == asked(None) == (3, [0, 1, 2, 3])


def test_what_only_members_call_is_not_counted() -> None:
    everywhere = asked([0, 1], None, None, None, True)  # noqa: FBT003 (as torch has it)
    assert everywhere == asked([0, 1], use_local_synchronization=True) == (-1, [0, 1])


def test_an_iterator_is_left_to_torch() -> None:
    def ranks() -> Iterator[int]:
        yield from (0, 1)

    given = ranks()
    assert asked(given) == (3, ())
    assert list(given) == [0, 1]


def test_what_is_no_plain_number_is_not_read() -> None:
    class Tensor:
        def __index__(self) -> int:
            raise AssertionError("it would wait for its device")

    assert asked([Tensor(), 1]) == (3, ())


def test_there_is_nothing_to_ask_before_the_job_is_one() -> None:
    without = SimpleNamespace(_world=SimpleNamespace(default_pg=None, group_count=0))
    assert new_group(without, function, (), {}) is None


def test_torch_itself_says_what_is_wrong_with_a_call() -> None:
    assert asked(1, 2, 3, 4, 5, 6) is None
