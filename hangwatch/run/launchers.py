"""The launchers: their programs, and the variables by which they number tasks.

From variables alone the processes of one job on one node compute a name that they share.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from hangwatch.safety.foreign import Ignoring

if TYPE_CHECKING:
    from collections.abc import Mapping

TASKS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Variables with a task's number, and with how many there are."""
ON_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
"""Variables with how many tasks a node has: one that is alone has nothing to share."""
LAUNCHERS = {
    "torchrun": "torchrun",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.pt": "deepspeed",
}
"""Programs that start ranks and do nothing else, each with the name of its launcher."""
LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""The same, as modules."""
_SAME_JOB = ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")


def job_name(environ: Mapping[str, str], run_id: str) -> str | None:
    """Return the name that all commands of one job on this node share, None for a single one.

    run_id: as the user gave it, else empty. Without it, and without a MASTER_ADDR and
    MASTER_PORT, two jobs cannot be distinguished.
    """
    if not any(_is_task(environ, *names) for names in TASKS):
        return None
    if any(environ.get(name) == "1" for name in ON_NODE):
        return None
    if not run_id and not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
        return None
    return shared_name(environ, run_id)


def shared_name(environ: Mapping[str, str], *parts: str) -> str:
    """Return a name that all processes of this node with the same parts compute."""
    parts += tuple(environ.get(name, "") for name in _SAME_JOB)
    namespace = ""  # containers that share /dev/shm are nodes of their own
    with Ignoring(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    known = "/".join((*parts, socket.gethostname(), namespace))
    digest = hashlib.blake2b(known.encode("utf-8", "surrogateescape"), digest_size=8)
    return f"job-{digest.hexdigest()}"


def _is_task(environ: Mapping[str, str], rank: str, size: str) -> bool:
    number, count = environ.get(rank, ""), environ.get(size, "")
    return number.isdecimal() and count != "1"
