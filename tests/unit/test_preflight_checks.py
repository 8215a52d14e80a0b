"""Each check of the machine and of the variables, against roots and limits handed in."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import pytest

from hangwatch.preflight import Finding, Grade, machine
from hangwatch.preflight.job import Job, job
from hangwatch.preflight.machine import devices, ptrace
from hangwatch.preflight.variables import contract, same_ranks, timeouts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WHOLE = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
}
GIB = 1 << 30


def worst(findings: Iterable[Finding]) -> Grade:
    return max(finding.grade for finding in findings)


def written(root: Path, **files: str) -> str:
    """A root of /proc with these files."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_a_whole_contract_is_fine_and_so_is_none() -> None:
    (found,) = contract(WHOLE, job(WHOLE))
    assert found.grade is Grade.OK
    assert "RANK=1" in found.what
    assert worst(contract({"PATH": "/bin"}, Job())) is Grade.OK


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RANK": "4"}, "RANK=4 with WORLD_SIZE=4"),
        ({"LOCAL_RANK": "2", "RANK": "3"}, "LOCAL_RANK=2 with LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE=8 is more than WORLD_SIZE=4"),
        ({"RANK": "0"}, "LOCAL_RANK=1 is more than RANK=0"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE=four is not a number"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is not a port"),
        ({"MASTER_ADDR": "[fd77::1]"}, "MASTER_ADDR=[fd77::1] is more than"),
        ({"MASTER_ADDR": "tcp://node-0"}, "more than a name"),
        ({"MASTER_ADDR": "node-0:29500"}, "more than a name"),
    ],
)
def test_a_contradiction_fails(change: dict[str, str], said: str) -> None:
    environ = {**WHOLE, **change}
    found = contract(environ, job(environ))
    assert worst(found) is Grade.FAIL
    assert said in " ".join(finding.what for finding in found)
    assert all(finding.remedy for finding in found)


def test_an_address_of_ipv6_is_fine() -> None:
    environ = {**WHOLE, "MASTER_ADDR": "fd77::1"}
    assert worst(contract(environ, job(environ))) is Grade.OK


def test_what_is_missing_is_named() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node-0"}
    (found,) = contract(environ, job(environ))
    assert found.grade is Grade.WARN
    assert found.what.startswith("MASTER_PORT not set")
    # A pod template may have no more than these, for a launcher.
    assert worst(contract({"MASTER_ADDR": "node-0"}, Job())) is Grade.OK


def test_a_launcher_sets_its_own_variables() -> None:
    """PyTorchJob of Kubernetes sets RANK to the node's rank, for a torchrun in the pod."""
    environ = {**WHOLE, "RANK": "7", "WORLD_SIZE": "2"}
    told = job(environ, ["torchrun", "--nnodes=2", "train.py"])
    assert worst(contract(environ, told)) is Grade.OK


def test_two_processes_of_one_rank_fail() -> None:
    ranks = [{"RANK": "0"}, {"RANK": "1"}, {"RANK": "1"}, {}]
    (found,) = same_ranks(ranks)
    assert found.grade is Grade.FAIL
    assert found.what.startswith("2 processes of this node have RANK=1")
    assert same_ranks([{"RANK": "0"}, {"RANK": "1"}]) == []


@pytest.mark.parametrize(
    ("visible", "gpus", "ranks", "grade", "said"),
    [
        (None, 0, 8, Grade.OK, "use the CPU"),
        (None, 8, 8, Grade.OK, "8 GPUs for 8 ranks"),
        (None, 8, None, Grade.OK, "8 GPUs visible"),
        ("0,1", 8, 2, Grade.OK, "2 GPUs for 2 ranks"),
        (None, 2, 4, Grade.WARN, "4 ranks on 2 GPUs"),
        ("0", 8, 2, Grade.WARN, "2 ranks on 1 GPU (CUDA_VISIBLE_DEVICES=0)"),
        ("0,0", 8, 2, Grade.WARN, "names 0 twice"),
        ("0,9,1", 8, 1, Grade.WARN, "names 9, and there are 8 GPUs"),
        ("", 8, 2, Grade.WARN, "hidden"),
        ("-1", 8, 2, Grade.WARN, "hidden"),
        ("GPU-aa,GPU-bb", 8, 2, Grade.OK, "2 GPUs for 2 ranks"),
    ],
)
def test_ranks_against_gpus(
    visible: str | None, gpus: int, ranks: int | None, grade: Grade, said: str
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = devices(environ, gpus, ranks)
    assert worst(found) is grade
    assert said in " ".join(finding.what for finding in found)


def space(total: int, free: int) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, total // 4096, free // 4096, free // 4096, 0, 0, 0, 0, 0))


def test_the_shared_memory_of_docker_is_too_small() -> None:
    found = machine.shared_memory(statvfs=lambda _: space(64 << 20, 60 << 20))
    assert found.grade is Grade.WARN
    assert "64 MiB, 60 MiB free" in found.what
    assert "--shm-size" in found.remedy
    assert machine.shared_memory(statvfs=lambda _: space(8 * GIB, 7 * GIB)).grade is Grade.OK
    assert machine.shared_memory("/nowhere/at/all").grade is Grade.WARN


@pytest.mark.parametrize(
    ("soft", "world_size", "grade"),
    [
        (1024, None, Grade.WARN),
        (20000, None, Grade.OK),
        (20000, 8192, Grade.WARN),
        (resource.RLIM_INFINITY, 100_000, Grade.OK),
    ],
)
def test_open_files_have_to_do_for_all_ranks(
    soft: int, world_size: int | None, grade: Grade
) -> None:
    found = machine.open_files(world_size, limit=lambda _: (soft, 4096 if soft > 0 else soft))
    assert found.grade is grade
    assert ("ulimit -n" in found.remedy) is (grade is Grade.WARN)


def test_what_a_crash_leaves(tmp_path: Path) -> None:
    pattern = tmp_path / "core_pattern"
    pattern.write_text("core.%p\n")
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert "all of its memory to core.%p" in machine.cores(str(pattern), lambda _: unlimited).what
    assert "no core file" in machine.cores(str(pattern), lambda _: (0, 0)).what
    pattern.write_text("|/usr/lib/systemd/systemd-coredump %P\n")
    assert "handed to /usr/lib/systemd/systemd-coredump" in machine.cores(str(pattern)).what


@pytest.mark.parametrize(
    ("line", "group"),
    [("0::/pod/job", "pod"), ("4:memory:/pod/job\n0::/", "memory/pod"), ("0::/", "")],
)
def test_the_limit_of_a_container_counts_from_whatever_level(
    tmp_path: Path, line: str, group: str
) -> None:
    proc = written(tmp_path / "proc", self__cgroup=f"{line}\n")
    where = tmp_path / "cgroup" / group
    where.mkdir(parents=True)
    cgroups = str(tmp_path / "cgroup")
    assert machine.memory(8, proc, cgroups).what.startswith("no limit")
    names = ("limit_in_bytes", "usage_in_bytes") if "memory:" in line else ("max", "current")
    for name, value in zip(names, (4 * GIB, GIB), strict=True):
        (where / f"memory.{name}").write_text(f"{value}\n")
    found = machine.memory(2, proc, cgroups)
    assert (found.grade, found.what) == (Grade.OK, "limited to 4.0 GiB, 1.0 GiB in use")
    assert machine.memory(8, proc, cgroups).grade is Grade.WARN


@pytest.mark.parametrize(
    ("scope", "capabilities", "grade", "said"),
    [
        ("0", "0", Grade.OK, "scope is 0"),
        ("1", "0", Grade.OK, "the ranks allow hangwatch"),
        ("2", "0", Grade.WARN, "no stacks"),
        ("2", "80000", Grade.OK, "with CAP_SYS_PTRACE"),
        ("3", "80000", Grade.WARN, "no process may read another"),
        (None, "0", Grade.OK, "no Yama"),
    ],
)
def test_who_may_read_stacks(
    tmp_path: Path, scope: str | None, capabilities: str, grade: Grade, said: str
) -> None:
    proc = written(tmp_path, self__status=f"Name:\tx\nCapEff:\t{capabilities}\n")
    if scope is not None:
        written(tmp_path, sys__kernel__yama__ptrace_scope=f"{scope}\n")
    found = ptrace(proc)
    assert found.grade is grade
    assert said in found.what


@pytest.mark.parametrize(
    ("environ", "suspect_after_s", "grade", "said"),
    [
        ({}, None, Grade.OK, "within 120 s"),
        ({}, 5.0, Grade.OK, "within 5 s"),
        ({}, 900.0, Grade.WARN, "NCCL ends a job after 600 s"),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60"}, None, Grade.WARN, "=60 ends a stuck rank"),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60"}, 20.0, Grade.OK, "within 20 s"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, None, Grade.WARN, "never ends"),
    ],
)
def test_hangwatch_speaks_before_the_timeouts(
    environ: dict[str, str], suspect_after_s: float | None, grade: Grade, said: str
) -> None:
    found = timeouts(environ, suspect_after_s)
    assert worst(found) is grade
    assert said in " ".join(finding.what for finding in found)
