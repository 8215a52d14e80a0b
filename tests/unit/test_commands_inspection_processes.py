"""Finding ranks among the processes of a made-up /proc."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangwatch.commands.inspection.processes import JobKey, absent, find, jobs

if TYPE_CHECKING:
    from pathlib import Path

TORCHRUN = 10
OTHER = 20


class Proc:
    """Processes by pid, as in proc(5)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, pid: int, ppid: int, *, torch: bool = True, **variables: object) -> None:
        where = self.root / str(pid)
        where.mkdir(parents=True)
        (where / "stat").write_text(f"{pid} (a) b) S {ppid} {'0 ' * 17}{pid} {'0 ' * 30}")
        told = "".join(f"{name}={value}\0" for name, value in variables.items())
        (where / "environ").write_bytes(told.encode())
        library = "7f00-7f01 r-xp 0 08:01 1 /x/torch/lib/libtorch_cpu.so" if torch else "7f00 libc"
        (where / "maps").write_text(library)

    def rank(
        self, pid: int, ppid: int, rank: int, *, port: int = 29500, torch: bool = True
    ) -> None:
        self.add(
            pid,
            ppid,
            torch=torch,
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE=2,
            LOCAL_WORLD_SIZE=2,
            MASTER_ADDR="node-a",
            MASTER_PORT=port,
            TORCHELASTIC_RUN_ID="none",
        )


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """Two torchruns with two ranks each, and a shell."""
    made = Proc(tmp_path)
    made.add(1, 0, torch=False)
    for launcher, port in ((TORCHRUN, 29500), (OTHER, 29501)):
        made.add(launcher, 1)
        for rank in (0, 1):
            made.rank(launcher + 1 + rank, launcher, rank, port=port)
    return made


def found(proc: Proc, *pids: int, also: tuple[int, ...] = ()) -> dict[int, int]:
    """Pid to rank."""
    processes, _ = find(pids, also, str(proc.root))
    return {one.pid: one.rank for one in processes}


def test_without_pids_all_ranks_are_found_and_no_launcher(proc: Proc) -> None:
    assert found(proc) == {11: 0, 12: 1, 21: 0, 22: 1}


def test_a_launcher_stands_for_its_ranks(proc: Proc) -> None:
    assert found(proc, TORCHRUN) == {11: 0, 12: 1}
    assert found(proc, 11, 22) == {11: 0, 22: 1}


def test_jobs_are_told_apart_by_their_store(proc: Proc) -> None:
    processes, _ = find((), (), str(proc.root))
    keys = [members[0].job for members in jobs(processes)]
    assert keys == [JobKey("node-a:29500", "none"), JobKey("node-a:29501", "none")]
    assert str(keys[0]) == "store at node-a:29500"


def test_what_a_rank_has_started_is_no_rank(proc: Proc) -> None:
    proc.rank(100, 11, 0)
    proc.rank(101, 100, 0)
    assert 100 not in found(proc)
    assert 101 not in found(proc)


def test_a_shell_around_a_rank_is_no_rank(proc: Proc) -> None:
    proc.rank(30, 1, 0, port=1, torch=False)
    proc.rank(31, 30, 0, port=1)
    assert found(proc, 30) == {31: 0}


def test_a_rank_that_has_not_come_to_torch_belongs_to_its_job(proc: Proc) -> None:
    proc.rank(30, 1, 0, port=1)
    proc.rank(31, 1, 1, port=1, torch=False)
    assert found(proc, 30, 31) == {30: 0, 31: 1}
    proc.rank(40, 1, 0, port=2, torch=False)
    assert 40 not in found(proc), "a job in which nobody has torch is none of ours"


def test_a_process_without_rank_is_looked_at_when_it_is_named(proc: Proc) -> None:
    proc.add(50, 1)
    proc.add(51, 50)
    proc.add(52, 50, torch=False)
    assert 50 not in found(proc)
    assert found(proc, 50) == {50: -1, 51: -1}
    assert found(proc, also=(51,))[51] == -1


def test_odd_numbers_in_the_environment_are_none(proc: Proc) -> None:
    proc.add(60, 1, RANK="x", WORLD_SIZE="²", MASTER_PORT="y")
    assert 60 not in found(proc)


def test_pids_that_are_gone_are_passed_over(proc: Proc) -> None:
    assert found(proc, 4_000_000) == {}


def test_local_ranks_without_a_process_are_missed(proc: Proc) -> None:
    processes, _ = find((TORCHRUN,), (), str(proc.root))
    assert absent(processes) == []
    assert absent(processes[:1]) == [1]


@pytest.mark.parametrize("claim", ["9" * 5000, str(10**12), "1" + "0" * 7])
def test_what_a_stranger_claims_of_his_job_costs_nothing(tmp_path: Path, claim: str) -> None:
    proc = Proc(tmp_path)
    proc.add(TORCHRUN, 0, LOCAL_WORLD_SIZE=claim, RANK=0, WORLD_SIZE=claim, LOCAL_RANK=claim)
    found, _ = find((), proc=str(tmp_path))
    assert [process.local_world_size for process in found] == [0]
    assert absent(found) == []
