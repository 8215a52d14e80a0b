"""What an agent says of the torch that it finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_torch import Group

from hangwatch.agent import torch_api
from hangwatch.agent.torch_api import GENERAL, NCCL, Recorders, lacks, reads_old_size
from hangwatch.model.operations import METHODS

WORLD = SimpleNamespace(
    default_pg=None, pg_map={}, pg_names={}, pg_group_ranks={}, pg_backend_config={}
)
WRAPPED = [*(method.name for method in METHODS if method.core), "monitored_barrier", "wait"]


def said(
    group: type = Group,
    world: Any = WORLD,
    wrapped: list[str] = WRAPPED,
    dumps: tuple[str, ...] = (NCCL, GENERAL),
    *,
    gil_free: bool | None = True,
) -> str:
    core = SimpleNamespace(_dump_nccl_trace=bytes, **dict.fromkeys(dumps, bytes))
    c10d = SimpleNamespace(_world=world, ProcessGroup=group)
    return "; ".join(lacks(c10d, Recorders(core), wrapped, gil_free=gil_free))


def test_nothing_is_said_of_a_torch_that_has_all() -> None:
    assert said() == ""


def test_a_method_that_nobody_here_knows_is_told() -> None:
    members = {
        name: SimpleNamespace(__doc__=f"{name}(self: ProcessGroup) -> {result}")
        for name, result in {
            "gather_all": "c10d::Work",
            "_end_coalescing": "torch._C._distributed_c10d.Work",
            "size": "int",
        }.items()
    }
    newer = type("Newer", (Group,), members)
    assert said(newer) == "calls of gather_all are not seen: they are new in ProcessGroup"
    assert said(newer, wrapped=[*WRAPPED, "gather_all"]) == ""


def test_what_has_gone_is_told() -> None:
    kept = [name for name in WRAPPED if name not in {"allreduce", "wait"}]
    assert said(wrapped=kept) == (
        "calls of allreduce are not seen: they have gone from ProcessGroup; "
        "that a rank waits for its work is not seen: Work has no wait()"
    )
    assert said(wrapped=["wait"]).startswith(
        "calls of _allgather_base, _reduce_scatter_base, allgather, allreduce and 11 more"
    )
    assert "no pg_map, pg_names" in said(world=SimpleNamespace(default_pg=None))
    assert "no sequence number" in said(object)


def test_what_an_older_torch_has_not_is_told() -> None:
    assert said(dumps=(NCCL,)).startswith("what C++ issues through gloo has no name")
    assert "does not show what is unfinished" in said(dumps=())


def dump_of(backend: str = "gloo") -> bytes:
    """Dump the recorder of a backend."""
    return backend.encode()


def test_each_backend_has_a_recorder_of_its_own_where_a_hook_records_it() -> None:
    recorders = Recorders(SimpleNamespace(_dump_nccl_trace_json=bytes, _dump_fr_trace_json=dump_of))
    told = {"nccl2": True, "mine": False, "gloo": False, "nccl": False}
    found = {
        name: recorders.add(name, reports_completion=completes) for name, completes in told.items()
    }
    assert found == {"nccl2": True, "mine": True, "gloo": False, "nccl": False}
    assert sorted(recorders.dumps) == [GENERAL, NCCL, "mine", "nccl2"]
    assert recorders.dumps["nccl2"]() == b"nccl2"
    assert recorders.silent == {"mine"}
    assert recorders.lack() == ""
    assert not recorders.add("xccl", reports_completion=True)
    assert "through xccl has no name" in recorders.lack()


def test_before_that_the_backends_that_nobody_records_are_named() -> None:
    recorders = Recorders(SimpleNamespace(_dump_fr_trace_json=bytes))
    for name in ("gloo", "mpi", "nccl", "ucc", "mpi"):
        assert not recorders.add(name, reports_completion=True)
    assert list(recorders.dumps) == [GENERAL]
    assert recorders.lack() == (
        "what C++ issues through mpi, ucc has no name: no recorder of its calls is known"
    )


def test_a_recorder_that_needs_the_gil_is_told_unless_that_is_ours() -> None:
    assert "holds the GIL" in said(gil_free=False)
    assert said(gil_free=None) == ""


@pytest.mark.parametrize(
    ("version", "needs_it"),
    [("2.4.1", True), ("2.7.1+cu128", True), ("2.8.0", False), ("2.15.0", False), (None, False)],
)
def test_only_an_old_torch_is_given_the_old_name_of_the_size(
    version: str | None, *, needs_it: bool
) -> None:
    assert reads_old_size(version) is needs_it


def test_code_is_kept_from_the_compiler_of_old_and_new_torch() -> None:
    skipped: list[object] = []
    code = said.__code__
    torch_api.keep_compiler_off(SimpleNamespace(skip_code=skipped.append), code, deep=True)
    assert skipped == [code]
    newer = SimpleNamespace(
        _FrameAction=SimpleNamespace(SKIP="skip", DEFAULT="default"),
        _FrameExecStrategy=lambda *actions: actions,
        set_code_exec_strategy=lambda *given: skipped.append(given),
    )
    torch_api.keep_compiler_off(newer, code, deep=False)
    assert skipped[1:] == [(code, ("skip", "default"))]
