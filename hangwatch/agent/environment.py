"""The environment of the job: what makes each Python process of it find the agent.

Only PYTHONPATH is extended, and only what is unset is set.
"""

from __future__ import annotations

import os
import re
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

SUPERVISOR_PID = "HANGWATCH_SUPERVISOR_PID"
ANY_SUPERVISOR = "any"
"""Its value where several supervisors share a watchdog."""
NATIVE = "HANGWATCH_NATIVE"
RECORDER = "HANGWATCH_RECORDER"

FLIGHT_ENTRIES = "2000"
"""Entries of the Flight Recorder; torch's own default since 2.11."""
_NEW_NAME = "TORCH_FR_BUFFER_SIZE"
_OLD_NAME = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_RENAMED_IN = (2, 8)


def job_environment(environ: Mapping[str, str], run_dir: str | os.PathLike[str]) -> dict[str, str]:
    """The environment in which the supervisor, and nobody else, starts the command.

    run_dir is the directory of the run. Raises FileNotFoundError if the
    installation lacks its sitecustomize.
    """
    job = dict(environ)
    ours = sitecustomize_directory()
    # An empty entry of a PYTHONPATH that is not empty itself means the current directory.
    theirs = environ["PYTHONPATH"].split(os.pathsep) if environ.get("PYTHONPATH") else []
    kept = [entry for entry in theirs if not entry or os.path.realpath(entry) != ours]
    job["PYTHONPATH"] = os.pathsep.join([ours, *kept])
    job["HANGWATCH_DIR"] = os.fspath(run_dir)
    job[SUPERVISOR_PID] = str(os.getpid())
    native = native_module_file()
    if native:
        job.setdefault(NATIVE, native)
    enable_flight_recorder(job)
    return job


def enable_flight_recorder(
    environ: MutableMapping[str, str], torch_version: str | None = None
) -> None:
    """Turn PyTorch's Flight Recorder on in every version of torch, where the user has no wish.

    Until 2.7 its size has the old name; since 2.8 the new one, and the old one
    prints a warning on every rank (getCvarInt in torch/csrc/distributed/c10d/
    Utils.hpp). So the old name is set only in a process whose torch is known to
    be that old; torch reads both when the first process group is made.
    """
    if _NEW_NAME not in environ and _OLD_NAME not in environ:
        environ[_NEW_NAME] = FLIGHT_ENTRIES
    version = re.match(r"(\d+)\.(\d+)", torch_version or "")
    if version and (int(version[1]), int(version[2])) < _RENAMED_IN:
        environ.setdefault(_OLD_NAME, environ.get(_NEW_NAME, FLIGHT_ENTRIES))


def sitecustomize_directory() -> str:
    """The real path of the directory to put in front of PYTHONPATH.

    It lies inside the installed package, and beside it in a source tree.
    Raises FileNotFoundError.
    """
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for place in (package, os.path.dirname(package)):
        directory = os.path.join(place, "sitecustomize")
        if os.path.isfile(os.path.join(directory, "sitecustomize.py")):
            return directory
    raise FileNotFoundError(
        f"no sitecustomize.py in {package}: this installation is not complete, install it again"
    )


def native_module_file() -> str | None:
    """Where ``hangwatch._native`` lies, for interpreters that cannot import it by name."""
    import hangwatch

    try:
        from importlib.util import find_spec

        spec = find_spec("hangwatch._native")
    except (ImportError, ValueError):
        spec = PathFinder.find_spec("hangwatch._native", list(hangwatch.__path__))
    return spec.origin if spec is not None else None
