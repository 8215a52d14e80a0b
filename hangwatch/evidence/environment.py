"""What of the job's environment and versions goes into a report: an allow-list."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

from hangwatch.evidence.nccl import library
from hangwatch.evidence.processes import PROC, environment
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
_TORCH = re.compile(r"(\S.*/torch)/lib/libtorch_\w+\.so")
_VERSION = re.compile(r"""^__version__ = ['"]([^'"]{1,64})['"]""", re.MULTILINE)
_MAX_CHARS = 500
_MAX_VERSION_BYTES = 64 << 10


def is_allowed(name: str) -> bool:
    """Whether a variable helps to understand a hang and gives away no secret."""
    if _SECRET.search(name):
        return False
    return name in _NAMES or name.startswith(_PREFIXES)


def job_environment(pid: int, proc: str = PROC) -> dict[str, str]:
    """The allowed variables of a rank, sorted by name."""
    found = environment(pid, is_allowed, proc)
    return {name: redaction.text(found[name], _MAX_CHARS) for name in sorted(found)}


def versions(pid: int, proc: str = PROC) -> dict[str, str]:
    """Versions that matter, as far as they can be known; pid is a rank's."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("hangwatch", "py-spy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    loaded = {
        "torch": torch_version(pid, proc),
        "NCCL": library.version(pid, proc),
        "NCCL may use": library.transport(pid, proc),
    }
    return found | {name: value for name, value in loaded.items() if value}


def torch_version(pid: int, proc: str = PROC) -> str:
    """The version of the torch that a process has loaded, empty if it has none."""
    try:
        maps = Path(proc, str(pid), "maps").read_text("utf-8", "replace")
        where = _TORCH.search(maps)
        if where is None:
            return ""
        directory = where[1][where[1].index("/") :]
        version = untrusted.read(Path(directory, "version.py"), _MAX_VERSION_BYTES, follow=True)
        found = _VERSION.search(version.decode("utf-8", "replace"))
    except (OSError, ValueError):
        return ""
    return found[1] if found else ""
