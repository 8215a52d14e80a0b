"""The NVML of a real driver: figures that make sense, and agree with nvidia-smi."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from waiting import until

from hangwatch.evidence.gpu.device import Pace
from hangwatch.evidence.gpu.reader import Gpus, LocalRank
from hangwatch.model.kinds import GpuHealth

if TYPE_CHECKING:
    from hangwatch.model.gpu import GpuState

pytestmark = pytest.mark.gpu
BUSY = """
import sys
import torch
kept = torch.ones(1 << 28, dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
"""


def started(pid: int) -> Gpus:
    """A reader whose one rank has a pid, once it has read each GPU."""
    gpus = Gpus("", Pace(read_s=0.2))
    ranks = [LocalRank(0, pid, 0, os.environ.get("CUDA_VISIBLE_DEVICES"), on_device=True)]
    gpus.watch(ranks, active=True)
    until(lambda: gpus.trouble or gpus.all_answered)
    assert gpus.trouble == ""
    return gpus


def test_each_figure_makes_sense() -> None:
    gpus = started(os.getpid())
    assert gpus.driver
    found = gpus.node().gpus
    assert found
    for gpu in found:
        assert gpu.uuid.startswith(("GPU-", "MIG-"))
        assert gpu.name
        assert gpu.health is GpuHealth.OK
        assert gpu.unreadable == ()
        assert gpu.memory_total_bytes is not None
        assert gpu.memory_total_bytes > 1 << 30
        assert gpu.memory_used_bytes is not None
        assert 0 <= gpu.memory_used_bytes <= gpu.memory_total_bytes
        assert gpu.temperature_c is None or 5 <= gpu.temperature_c <= 110
        assert gpu.power_w is None or 1 <= gpu.power_w <= 2000
        assert gpu.sm_clock_hz is None or 1e8 <= gpu.sm_clock_hz <= 1e10
        assert gpu.throttle is not None
        assert gpu.xids == ()
    assert gpus.without_events == {}


def test_nvidia_smi_says_the_same() -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        pytest.skip("there is no nvidia-smi on this machine")
    fields = "--query-gpu=uuid,index,name,memory.total"
    done = subprocess.run(  # noqa: S603 (the driver's own)
        [smi, fields, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    found = {gpu.parent or gpu.uuid: gpu for gpu in started(os.getpid()).node().gpus}
    assert found.keys() == {uuid for uuid, *_ in rows}
    for uuid, index, name, total_mib in rows:
        gpu = found[uuid]
        assert gpu.index == int(index)
        if not gpu.parent:
            assert gpu.name == name
            assert gpu.memory_total_bytes is not None
            assert gpu.memory_total_bytes >> 20 == pytest.approx(int(total_mib), abs=2)


def test_a_process_with_a_tensor_is_on_its_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA on this machine")
    with subprocess.Popen(  # noqa: S603 (the program above)
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            gpus = started(process.pid)
            until(gpus.by_rank)
            gpu: GpuState = gpus.by_rank()[0]
        finally:
            process.kill()
    assert gpu.memory_used_bytes is not None
    assert gpu.memory_used_bytes >= 1 << 28
    # In a container NVML may count pids as the host does: then it is concluded from LOCAL_RANK.
    assert gpu.ranks == (0,)
    sys.stderr.write(f"by {'LOCAL_RANK' if gpu.assumed else 'pid'}: {gpu}\n")
