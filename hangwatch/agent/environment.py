"""The environment of the job: what makes each Python process of it find the agent.

Only PYTHONPATH is extended, and only what is unset is set. A Python that hangwatch is installed
for needs nothing but HANGWATCH=1: ``hangwatch.pth`` looks at it.
"""

from __future__ import annotations

import base64
import json
import os
from importlib.machinery import PathFinder

from hangwatch.agent.torch_api import OLD_SIZE, SIZE, reads_old_size
from hangwatch.safety.foreign import Ignoring, is_foreign

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from typing import Any

WANTED = "HANGWATCH"
"""Variable that is ``1`` to have the ranks watched, and ``0`` to leave them alone."""
SUPERVISOR_PID = "HANGWATCH_SUPERVISOR_PID"
ANY_SUPERVISOR = "any"
"""Value of SUPERVISOR_PID where several supervisors share a watchdog."""
CARRIED = "PYTHON_HANGWATCH"
"""Variable with the supervisor's options, for the ranks of other nodes. Launchers that carry
PYTHONPATH there often carry all variables that begin like it (DeepSpeed's pdsh runner), and no
others."""
NATIVE = "HANGWATCH_NATIVE"
RECORDER = "HANGWATCH_RECORDER"

FLIGHT_ENTRIES = "2000"
"""Entries of the Flight Recorder; torch's own default since 2.11."""


def job_environment(environ: Mapping[str, str], run_dir: str | os.PathLike[str]) -> dict[str, str]:
    """Return the environment in which the supervisor, and it alone, starts the command.

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
    # For hangwatch.pth, where PYTHONPATH is lost on the way.
    job.setdefault(WANTED, "1")
    native = native_module_file()
    if native:
        job.setdefault(NATIVE, native)
    enable_flight_recorder(job)
    return job


def packed(values: Mapping[str, Any]) -> str:
    """Pack plain values into a word that no shell has to quote, for CARRIED."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def carried(environ: Mapping[str, str]) -> dict[str, Any]:
    """Unpack what a supervisor, here or on another node, has packed; empty if nothing."""
    try:
        values = json.loads(base64.urlsafe_b64decode(environ.get(CARRIED, "")))
    except ValueError as error:
        if is_foreign(error):
            raise
        return {}
    return values if isinstance(values, dict) else {}


def looks_for_stragglers(environ: Mapping[str, str]) -> bool:
    """Return False if the user wants no search for stragglers (settings/config.py)."""
    config = carried(environ).get("config")
    if isinstance(config, dict):
        return config.get("stragglers") is not False
    return environ.get("HANGWATCH_NO_STRAGGLERS") != "1"


def wrapped_in(environ: Mapping[str, str]) -> str:
    """Return the directory of the run if a supervisor of this node has made it, else empty."""
    own = environ.get("HANGWATCH_DIR", "") if environ.get(SUPERVISOR_PID) else ""
    for directory in (own, carried(environ).get("run_dir")):
        if isinstance(directory, str) and directory and os.path.isdir(directory):
            return directory
    return ""


def outside_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for processes that watch: not injected, but able to import us.

    PYTHONPATH gets the directory that holds the package only where a fresh
    interpreter would not find it, since PYTHONPATH comes before the standard
    library and a site-packages directory there could shadow it.
    """
    injected = ""
    with Ignoring(OSError):
        injected = sitecustomize_directory()
    paths = [
        path
        for path in environ.get("PYTHONPATH", "").split(os.pathsep)
        if path and os.path.realpath(path) != injected
    ]
    home = os.path.dirname(package_directory())
    if os.path.basename(home) not in {"site-packages", "dist-packages"}:
        paths.append(home)
    clean = {
        name: value for name, value in environ.items() if name not in {"HANGWATCH_DIR", WANTED}
    }
    clean["PYTHONPATH"] = os.pathsep.join(paths)
    if not paths:
        del clean["PYTHONPATH"]
    return clean


def package_directory() -> str:
    """Return the real path of the package hangwatch."""
    return os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def enable_flight_recorder(
    environ: MutableMapping[str, str], torch_version: str | None = None
) -> None:
    """Turn PyTorch's Flight Recorder on in every version of torch, where the user has no wish.

    The old name of its size is set only in a process whose torch is known to need it; torch
    reads both when the first process group is made.
    """
    if SIZE not in environ and OLD_SIZE not in environ:
        environ[SIZE] = FLIGHT_ENTRIES
    if reads_old_size(torch_version):
        environ.setdefault(OLD_SIZE, environ.get(SIZE, FLIGHT_ENTRIES))


def sitecustomize_directory() -> str:
    """Return the real path of the directory to put in front of PYTHONPATH.

    It lies inside the installed package, and next to it in a source tree.
    Raises FileNotFoundError.
    """
    package = package_directory()
    for parent in (package, os.path.dirname(package)):
        directory = os.path.join(parent, "sitecustomize")
        if os.path.isfile(os.path.join(directory, "sitecustomize.py")):
            return directory
    raise FileNotFoundError(
        f"no sitecustomize.py in {package}: this installation is not complete, install it again"
    )


def native_module_file() -> str | None:
    """Return the path of ``hangwatch._native``, for interpreters that cannot import it by name."""
    import hangwatch

    try:
        from importlib.util import find_spec

        spec = find_spec("hangwatch._native")
    except (ImportError, ValueError) as error:
        if is_foreign(error):
            raise
        spec = PathFinder.find_spec("hangwatch._native", list(hangwatch.__path__))
    return spec.origin if spec is not None else None
