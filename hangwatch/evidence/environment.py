"""The variables and versions of a job that go into a report, by an allow-list.

From /proc alone (proc(5)): the libraries and devices that are mapped and open.
"""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

from hangwatch.evidence.processes import PROC, environment
from hangwatch.evidence.sockets import open_files
from hangwatch.safety import redaction, untrusted

_NAMES = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_VISIBLE_DEVICES",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMP_NUM_THREADS",
        "WORLD_SIZE",
    }
)
_PREFIXES = (
    "FI_",  # libfabric, such as EFA
    "GLOO_",
    "NCCL_",
    "TORCHELASTIC_",
    "TORCH_DISTRIBUTED_",
    "TORCH_FR_",
    "TORCH_NCCL_",
    "UCX_",
)
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")
_TORCH = re.compile(r"(/.*/torch)/lib/libtorch_\w+\.so")
_VERSION = re.compile(r"""^__version__ = ['"]([^'"]{1,64})['"]""", re.MULTILINE)
_MAX_CHARS = 500
_MAX_VERSION_BYTES = 64 << 10
MAX_SHOWN = 16
_NCCL = re.compile(r"(/\S.*/)nvidia/nccl/lib/libnccl\.so")
_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d[\w.+]{0,30})\.dist-info")
_PLUGIN = re.compile(r"/(libnccl-(?:net|tuner|profiler)[\w.-]{0,60}|librccl-net[\w.-]{0,60})$")
_SEGMENT = re.compile(r"/dev/shm/nccl-\w+")  # noqa: S108 (where NCCL maps its buffers from)
_VERBS = re.compile(r"/dev/infiniband/(uverbs\d{1,4})")


def is_allowed(name: str) -> bool:
    """True if a variable helps to understand a hang and gives away no secret."""
    if _SECRET.search(name):
        return False
    return name in _NAMES or name.startswith(_PREFIXES)


def job_environment(pid: int, proc: str = PROC) -> dict[str, str]:
    """Return the allowed variables of a rank, sorted by name."""
    variables = environment(pid, is_allowed, proc)
    return {name: redaction.text(variables[name], _MAX_CHARS) for name in sorted(variables)}


def versions(pid: int, proc: str = PROC) -> dict[str, str]:
    """Return the versions that matter, as far as they are known; pid is a rank's."""
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("hangwatch", "py-spy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    loaded = {
        "torch": torch_version(pid, proc),
        "NCCL": nccl_version(pid, proc),
        "NCCL may use": nccl_transport(pid, proc),
    }
    return versions | {name: value for name, value in loaded.items() if value}


def torch_version(pid: int, proc: str = PROC) -> str:
    """Return the version of the torch that a process has loaded, empty if it has none."""
    root = next((m[1] for path in _mapped(pid, proc) if (m := _TORCH.match(path))), None)
    try:
        file = Path(root, "version.py") if root else None
        text = untrusted.read(file, _MAX_VERSION_BYTES, follow=True) if file else b""
    except (OSError, ValueError):
        return ""
    version = _VERSION.search(text.decode("utf-8", "replace"))
    return version[1] if version else ""


def nccl_version(pid: int, proc: str = PROC) -> str:
    """Return the version of the NCCL wheel that a process has loaded, empty if unknown."""
    root = next((m[1] for path in _mapped(pid, proc) if (m := _NCCL.match(path))), None)
    try:
        names = os.listdir(root) if root else []  # noqa: PTH208 (names only)
    except OSError:
        return ""
    return next((m[1] for name in names if (m := _WHEEL.fullmatch(name))), "")


def nccl_transport(pid: int, proc: str = PROC, sys: str = "/sys") -> str:
    """Return what a process has loaded and opened for NCCL, for people; empty for nothing.

    Only NCCL's own log (NCCL_DEBUG=INFO) shows what it chose to use, and that is the user's.
    """
    mapped = _mapped(pid, proc)
    plugins = sorted({m[1] for path in mapped if (m := _PLUGIN.search(path))})
    verbs = {m[1] for path in open_files(pid, proc) if (m := _VERBS.fullmatch(path))}
    adapters = sorted({_adapter(device, sys) for device in verbs})
    means = plugins[:MAX_SHOWN]
    if adapters:
        means.append(f"RDMA adapters {', '.join(adapters[:MAX_SHOWN])}")
    if any(_SEGMENT.match(path) for path in mapped):
        means.append("shared memory")
    return "; ".join(means)


def _mapped(pid: int, proc: str) -> list[str]:
    """Return the files that a process has mapped, each once."""
    try:
        text = Path(proc, str(pid), "maps").read_text("utf-8", "replace")
    except OSError:
        return []
    paths = (fields[5] for line in text.splitlines() if len(fields := line.split(None, 5)) > 5)  # noqa: PLR2004
    return list(dict.fromkeys(path.removesuffix(" (deleted)") for path in paths))


def _adapter(uverbs: str, sys: str) -> str:
    """Return the adapter behind /dev/infiniband/uverbsN, such as mlx5_0."""
    try:
        return Path(sys, "class/infiniband_verbs", uverbs, "ibdev").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return uverbs
