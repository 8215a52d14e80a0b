"""Which NCCL a rank has loaded, and what it could use, from its /proc."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangwatch.evidence.environment import is_allowed, nccl_transport, nccl_version

if TYPE_CHECKING:
    from pathlib import Path

MAPS = """\
7f00-7f10 r-xp 00000000 00:1f 42 {site}/nvidia/nccl/lib/libnccl.so.2
7f10-7f20 r--p 00001000 00:1f 42 {site}/nvidia/nccl/lib/libnccl.so.2
7f20-7f30 r-xp 00000000 00:1f 43 /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so
7f30-7f40 rw-s 00000000 00:1f 44 /dev/shm/nccl-bG3xq1 (deleted)
7f40-7f50 rw-p 00000000 00:00 0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with process 7, which has NCCL and two adapters, and process 8, which has nothing."""
    site = tmp_path / "site packages"
    (site / "nvidia/nccl/lib").mkdir(parents=True)
    (site / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    (site / "nvidia_cublas_cu12-12.9.1.4.dist-info").mkdir()
    files = tmp_path / "proc/7/fd"
    files.mkdir(parents=True)
    (tmp_path / "proc/7/maps").write_text(MAPS.format(site=site))
    for number, name in enumerate(("uverbs1", "uverbs0", "uverbs1", "rdma_cm")):
        (files / str(number)).symlink_to(f"/dev/infiniband/{name}")
    adapter = tmp_path / "sys/class/infiniband_verbs/uverbs0"
    adapter.mkdir(parents=True)
    (adapter / "ibdev").write_text("mlx5_0\n")
    (tmp_path / "proc/8").mkdir()
    (tmp_path / "proc/8/maps").write_text("7f00-7f10 r-xp 00000000 00:1f 42 /usr/lib/libc.so.6\n")
    return tmp_path / "proc"


def test_the_version_is_that_of_the_wheel(proc: Path) -> None:
    assert nccl_version(7, str(proc)) == "2.27.5"


def test_what_is_loaded_and_open_is_told_and_no_more(proc: Path) -> None:
    found = nccl_transport(7, str(proc), str(proc.parent / "sys"))
    assert found == "libnccl-net-ofi.so; RDMA adapters mlx5_0, uverbs1; shared memory"


def test_of_a_process_without_nccl_nothing_is_told(proc: Path) -> None:
    for pid in (8, 9):
        assert nccl_version(pid, str(proc)) == nccl_transport(pid, str(proc)) == ""


def test_variables_of_what_nccl_goes_through_are_allowed_and_no_secrets() -> None:
    allowed = ("NCCL_RAS_ADDR", "TORCH_NCCL_ENABLE_TIMING", "UCX_TLS", "FI_PROVIDER")
    assert all(map(is_allowed, allowed))
    assert not any(map(is_allowed, ("NCCL_AUTH", "UCX_TOKEN", "FI_SECRET_KEY", "HOME")))
