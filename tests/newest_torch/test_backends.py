"""Backends that record nothing themselves, whose calls a hook of torch's records from 2.15 on.

``make matrix`` runs it. What a device runs is simulated by a thread that runs calls in their
order (store_backend.cpp), and the device itself by the host (simulated_device.cpp); nothing here
has a device.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from expectations import expectations, mistakes, run
from harness import FORKED, environment
from test_analyze import age, analyzed

if TYPE_CHECKING:
    from expectations import Expectation
    from harness import Result

HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent
INCLUDES = (TORCH / "include", TORCH / "include/torch/csrc/api/include")
LIBRARIES = ("torch", "torch_cpu", "torch_python", "c10")
OTHER = {"STORE_BACKEND_NAME": "mine"}
SILENT = OTHER | {"STORE_BACKEND_SILENT": "1"}
RENAMED = {"STORE_BACKEND_NAME": "nccl2"}
ON_DEVICE = RENAMED | {"STORE_BACKEND_DEVICE": "sim"}
"""In a group of two backends, as ``init_process_group()`` makes it where there is a GPU."""
CASES = {str(case): case for case in (*expectations(), *expectations(HERE / "programs"))}
RUNS = [
    *(
        (OTHER, name)
        for name in (
            *("ddp_data_worker_stuck", "ddp_healthy", "ddp_uneven_iterable", "fsdp_sleep"),
            *("gil_held", "no_sync_on_one_rank", "op_mismatch", "recv_without_send"),
            *("skipped_batch", "slow_checkpoint", "tp_dp_order_swapped", "two_backends"),
        )
    ),
    *((SILENT, name) for name in ("ddp_data_worker_stuck", "op_mismatch", "slow_checkpoint")),
    *(
        (ON_DEVICE, name)
        for name in (
            *("ddp_healthy", "metric_on_first_rank", "mixed_group", "mixed_group --amid"),
            *("mixed_group --quiet", "no_sync_on_one_rank", "op_mismatch", "recv_without_send"),
            "skipped_batch",
        )
    ),
    *((RENAMED, name) for name in ("ddp_data_worker_stuck", "ddp_healthy", "skipped_batch")),
]


@pytest.fixture(scope="session")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that it was built in."""
    where = tmp_path_factory.mktemp("backend")
    subprocess.run(  # noqa: S603 (our own source)
        [
            *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"),
            *(f"-I{path}" for path in (*INCLUDES, sysconfig.get_path("include"))),
            *("-o", str(where / "store_backend.so"), *map(str, sorted(HERE.glob("*.cpp")))),
            *(f"-L{TORCH}/lib", *(f"-l{name}" for name in LIBRARIES)),
        ],
        check=True,
        timeout=600,
    )
    return where


def through(case: Expectation, backend: Path, how: dict[str, str]) -> Result:
    """What comes of a program that runs through the backend."""
    stands_for_it = replace(
        case,
        program=HERE / "through_store.py",
        arguments=(str(case.program), *case.arguments),
    )
    return run(stands_for_it, env={"STORE_BACKEND": str(backend), **how})


@pytest.mark.parametrize(
    ("how", "name"), RUNS, ids=[f"{'-'.join(how.values())}-{name}" for how, name in RUNS]
)
def test_the_verdict_is_as_through_gloo(backend: Path, how: dict[str, str], name: str) -> None:
    case = CASES[name]
    result = through(case, backend, how)
    assert mistakes(case, result) == []
    assert "has no name" not in result.stderr


@pytest.mark.parametrize("kind", ["pkl", "json"])
@pytest.mark.parametrize(("fault", "culprit"), [("stall", 2), ("skip", 1)])
def test_the_rank_that_broke_a_job_is_named_from_its_dumps(
    backend: Path, tmp_path: Path, fault: str, culprit: int, kind: str
) -> None:
    program = HERE.parent / "integration/programs/recorded.py"
    command = [str(FORKED), "4", str(HERE / "through_store.py"), str(program), fault]
    subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, *command, str(tmp_path), RENAMED["STORE_BACKEND_NAME"]],
        env=environment({"STORE_BACKEND": str(backend), **RENAMED}),
        capture_output=True,
        timeout=200,
        check=True,
    )
    age(tmp_path)
    verdict = analyzed(*sorted(tmp_path.glob(f"*.{kind}")))["verdict"]
    assert (verdict["state"], verdict["culprits"]) == ("hang", [culprit])
