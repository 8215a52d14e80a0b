"""Whether this command is one rank of several that were started each by itself.

``srun``, ``mpirun`` and scripts like them start hangwatch once for each rank, with the
rank in the environment. All of one job on one node then share a run directory and a
watchdog (companions.py), which they find by a name made of what the launcher gave them.
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
"""Where launchers put a task's number, and how many there are."""
ON_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
"""Where they put how many tasks a node has: one that is alone has nothing to share."""
_SAME_JOB = ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")


def job_name(environ: Mapping[str, str], run_id: str) -> str | None:
    """The name that all commands of one job on this node share, None for a job of its own.

    run_id: as the user gave it, empty where not. Without it, and without a
    MASTER_ADDR and MASTER_PORT, nothing tells one job from another.
    """
    if not any(_is_task(environ, *names) for names in TASKS):
        return None
    if any(environ.get(name) == "1" for name in ON_NODE):
        return None
    if not run_id and not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
        return None
    return shared_name(environ, run_id)


def shared_name(environ: Mapping[str, str], *told: str) -> str:
    """The same for all that are on this node and were told the same."""
    known = [*told, *(environ.get(name, "") for name in _SAME_JOB)]
    known += [socket.gethostname(), _pid_namespace()]
    told_bytes = "/".join(known).encode("utf-8", "surrogateescape")
    return f"job-{hashlib.blake2b(told_bytes, digest_size=8).hexdigest()}"


def _is_task(environ: Mapping[str, str], rank: str, size: str) -> bool:
    number, count = environ.get(rank, ""), environ.get(size, "")
    return number.isdecimal() and count != "1"


def _pid_namespace() -> str:
    """Containers that share /dev/shm are nodes of their own."""
    with Ignoring(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""
