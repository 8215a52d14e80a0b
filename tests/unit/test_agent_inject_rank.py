"""Which rank a process is, from its environment and its ancestors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hangwatch.agent.inject import rank

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("environ", "launched"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": " 0 ", "WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, None),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, None),
        ({"RANK": "3"}, None),
        ({"RANK": "a", "WORLD_SIZE": "8"}, None),
        ({"RANK": "3", "WORLD_SIZE": "9" * 30}, None),
        ({}, None),
    ],
)
def test_a_launcher_sets_both_rank_and_world_size(
    environ: dict[str, str], launched: tuple[int, int] | None
) -> None:
    assert rank.launched_as(environ) == launched


def test_identity_says_who_owns_the_page() -> None:
    environ = {
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "job",
        "MASTER_ADDR": "node-0",
        "MASTER_PORT": "29500",
    }
    fields = rank.identity(environ, 5, 8)
    assert (fields["rank"], fields["world_size"], fields["pid"]) == (5, 8, os.getpid())
    assert (fields["local_rank"], fields["local_world_size"], fields["restart"]) == (1, 4, 2)
    assert (fields["store_host"], fields["store_port"]) == ("node-0", 29500)
    assert fields["run_id"] == "job"
    own = {"HANGWATCH_RUN_ID": "mine"}
    assert rank.identity({**environ, **own}, 5, 8)["run_id"] == "job"
    assert rank.identity(own, 5, 8)["run_id"] == "mine"


def test_a_command_name_full_of_parentheses_does_not_shift_the_fields(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = ["S", "6", *map(str, range(5, 60))]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) (c) {' '.join(fields)}\n")
    assert rank.start_ticks(7, str(tmp_path)) == int(fields[19])


def test_start_ticks_are_those_of_proc() -> None:
    assert rank.start_ticks(os.getpid()) > 0


class TestDescent:
    """Whether a process was started by a rank."""

    def proc(self, root: Path, parents: dict[int, int]) -> str:
        for pid, parent in parents.items():
            (root / "proc" / str(pid)).mkdir(parents=True)
            (root / "proc" / str(pid) / "stat").write_text(f"{pid} (x) S {parent} 0 0")
        return str(root / "proc")

    def test_a_grandchild_of_the_rank_is_no_rank(self, tmp_path: Path) -> None:
        proc = self.proc(tmp_path, {30: 20, 20: 10, 10: 1})
        (tmp_path / "r0-3-10.page").touch()
        assert rank.descends_from_rank(str(tmp_path), 0, 3, 30, proc)

    def test_another_rank_a_restart_or_a_stranger_is_no_ancestor(self, tmp_path: Path) -> None:
        proc = self.proc(tmp_path, {30: 20, 20: 10, 10: 1})
        for name in ("r0-2-10.page", "r1-3-10.page", "r0-3-99.page", "r0-3-10.page.req", "lock"):
            (tmp_path / name).touch()
        assert not rank.descends_from_rank(str(tmp_path), 0, 3, 30, proc)

    def test_a_rank_is_not_its_own_ancestor(self, tmp_path: Path) -> None:
        proc = self.proc(tmp_path, {30: 20, 20: 1})
        (tmp_path / "r0-3-30.page").touch()
        assert not rank.descends_from_rank(str(tmp_path), 0, 3, 30, proc)

    def test_what_cannot_be_read_is_no_descent(self, tmp_path: Path) -> None:
        assert not rank.descends_from_rank(str(tmp_path / "gone"), 0, 0)
        (tmp_path / "r0-0-5.page").touch()
        assert not rank.descends_from_rank(str(tmp_path), 0, 0, 4, str(tmp_path / "no-proc"))

    def test_a_loop_of_parents_ends(self, tmp_path: Path) -> None:
        proc = self.proc(tmp_path, {30: 20, 20: 30})
        (tmp_path / "r0-0-5.page").touch()
        assert not rank.descends_from_rank(str(tmp_path), 0, 0, 30, proc)

    def test_a_real_child_finds_its_parent(self, tmp_path: Path) -> None:
        (tmp_path / f"r0-0-{os.getpid()}.page").touch()
        code = (
            "from hangwatch.agent.inject.rank import descends_from_rank as f; "
            f"print(f({str(tmp_path)!r}, 0, 0), f({str(tmp_path)!r}, 0, 1))"
        )
        answer = subprocess.run(  # noqa: S603 (our own interpreter)
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert answer.stdout == "True False\n"


def test_what_is_no_utf_8_is_written_into_a_page_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = "\udcff\udcfe"
    monkeypatch.setattr(sys, "orig_argv", ["python", f"train-{odd}.py"])
    monkeypatch.setattr(socket, "gethostname", lambda: odd)
    environ = {"MASTER_ADDR": odd, "TORCHELASTIC_RUN_ID": odd}
    fields = rank.identity(environ, 0, 1)
    assert [fields[name] for name in ("host", "store_host", "run_id")] == ["\\xff\\xfe"] * 3
    assert "".join(str(value) for value in fields.values()).encode()
