"""The rank of this process by its environment, and by the arguments of init_process_group."""

from __future__ import annotations

import os
import re
import socket

from hangwatch.agent.call_site import started
from hangwatch.agent.environment import carried
from hangwatch.run.launchers import LAUNCHER_MODULES, LAUNCHERS
from hangwatch.safety.foreign import is_foreign
from hangwatch.safety.texts import readable

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_PAGE = r"r(-?\d+)-(-?\d+)-(\d+)\.page"
_LAUNCHERS = frozenset({"accelerate", "ds", *LAUNCHERS})
_LAUNCHER_MODULES = frozenset(
    {"accelerate.commands.accelerate_cli", "deepspeed.launcher.launch", *LAUNCHER_MODULES}
)
_INIT = ("backend", "init_method", "timeout", "world_size", "rank")
"""The first parameters of init_process_group."""
_IN_URL = r"[?&](rank|world_size)=(\d{1,9})(?=&|$)"
_ANCESTORS = 32
"""Generations of the tree of processes in which a rank is looked for."""


def launched_as(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return (rank, world size) that the launcher gave this process, or None."""
    rank = number(environ, "RANK", -1)
    world_size = number(environ, "WORLD_SIZE", -1)
    return (rank, world_size) if 0 <= rank < world_size else None


def number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return the variable as an integer that fits into 31 bits, else ``otherwise``."""
    text = environ.get(name, "")
    if re.fullmatch(r"\s*-?\d{1,9}\s*", text, re.ASCII):
        return int(text)
    return otherwise


def announced(
    args: tuple[Any, ...], kwargs: dict[str, Any], environ: Mapping[str, str]
) -> tuple[int, int]:
    """Return (rank, world size) by arguments, init_method's URL or environment; -1 if unknown."""
    named = {**dict(zip(_INIT, args, strict=False)), **kwargs}
    in_url = dict(re.findall(_IN_URL, init_method(args, kwargs)))
    launched = launched_as(environ) or (-1, -1)

    def known(name: str, otherwise: int) -> int:
        given = named.get(name)
        if isinstance(given, int) and given >= 0:
            return given
        return int(in_url.get(name, otherwise))

    return known("rank", launched[0]), known("world_size", launched[1])


def init_method(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the init_method that init_process_group was called with, or empty."""
    url = {**dict(zip(_INIT, args, strict=False)), **kwargs}.get("init_method")
    return url if isinstance(url, str) else ""


def store_address(world: Any, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the job's TCPStore; for other stores, those of the environment."""
    store = world.pg_map[world.default_pg][1]
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None) or environ.get("MASTER_ADDR", "")
    port = getattr(store, "port", None) or number(environ, "MASTER_PORT", 0)
    return str(host), int(port)


def restart_count(environ: Mapping[str, str]) -> int:
    """Return how often the launcher has restarted this rank (torchrun counts)."""
    return max(0, number(environ, "TORCHELASTIC_RESTART_COUNT", 0))


def page_path(directory: str, restart: int, rank: int, pid: int) -> str:
    """Return the path of the page of a process that is, or may be, a rank."""
    return os.path.join(directory, f"r{restart}-{rank}-{pid}.page")


def identity(environ: Mapping[str, str], rank: int, world_size: int) -> dict[str, Any]:
    """Return the fields of types.Identity for this process. Raises OSError without /proc."""
    pid = os.getpid()
    return {
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "rank": rank,
        "world_size": world_size,
        "local_rank": number(environ, "LOCAL_RANK", -1),
        "local_world_size": number(environ, "LOCAL_WORLD_SIZE", -1),
        "restart": restart_count(environ),
        "host": readable(socket.gethostname()),
        "store_host": readable(environ.get("MASTER_ADDR", "")),
        "store_port": number(environ, "MASTER_PORT", 0),
        # The same on every node: torchrun's comes first, since --run-id may be missing on some.
        "run_id": readable(environ.get("TORCHELASTIC_RUN_ID") or named_run(environ)),
    }


def named_run(environ: Mapping[str, str]) -> str:
    """Return the run id that the user gave, here or on the node where hangwatch was started."""
    config = carried(environ).get("config")
    carried_id = config.get("run_id") if isinstance(config, dict) else ""
    return environ.get("HANGWATCH_RUN_ID") or str(carried_id or "")


def is_launcher(words: Sequence[str]) -> bool:
    """Return True if a command line (sys.orig_argv) is that of a launcher, which is no rank itself.

    A pod may have RANK and WORLD_SIZE set for itself (Kubeflow's PyTorchJob does), and
    torchrun, which it runs, sets others for its ranks.
    """
    module, file = started(words)
    return module in _LAUNCHER_MODULES or os.path.basename(file) in _LAUNCHERS


def start_ticks(pid: int, proc: str = "/proc") -> int:
    """Return when the process started: field 22 of /proc/PID/stat (proc(5)). Raises OSError."""
    return int(_stat_fields(pid, proc)[19])


def _stat_fields(pid: int, proc: str) -> list[str]:
    """Return fields 3 and on of /proc/PID/stat; the second may hold anything, also ')'."""
    with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def descends_from_rank(
    directory: str, restart: int, rank: int, pid: int | None = None, proc: str = "/proc"
) -> bool:
    """Return True if an ancestor of this process already has the page of that rank.

    Spawned data workers, compile workers and whatever else a rank starts inherit
    its RANK, and are not the rank.
    """
    try:
        owners = {
            int(match[3])
            for match in (re.fullmatch(_PAGE, name) for name in os.listdir(directory))
            if match and (int(match[1]), int(match[2])) == (restart, rank)
        }
        ancestor = os.getpid() if pid is None else pid
        for _ in range(_ANCESTORS if owners else 0):
            ancestor = int(_stat_fields(ancestor, proc)[1])
            if ancestor in owners:
                return True
            if ancestor <= 1:
                break
    except (OSError, ValueError, IndexError) as error:
        if is_foreign(error):
            raise
        return False
    return False
