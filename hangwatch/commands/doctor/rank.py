"""One rank of a trial: come, say who you are, connect, reduce a little, and say how it went.

Runs in the job's own interpreter, by the job's own launcher. Standard library, torch and
the checks of preflight only.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hangwatch import __version__
from hangwatch.commands.doctor import roll_call, timing
from hangwatch.commands.doctor.outcome import STEP_S, Outcome, Stage, init_s, longest_s
from hangwatch.preflight import network
from hangwatch.preflight.job import number
from hangwatch.preflight.network import interfaces

RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
ALIKE = (
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_FAMILY",
    "TORCH_NCCL_BLOCKING_WAIT",
)
"""Variables that all ranks have to share."""
_OVERTIME_S = 5.0


def main(arguments: Sequence[str]) -> None:
    """arguments: the directory for the outcome, the seconds until all have to be there.

    Some launchers put a --local_rank before them.
    """
    directory, patience_s = arguments[-2], float(arguments[-1])
    known = ranked(os.environ)
    if known is None:
        Outcome(-1, 0, error="the line starts a process that is no rank").leave(directory)
        return
    _end_in(longest_s(patience_s))
    trial = _Trial(directory, patience_s, Outcome(*known))
    try:
        trial.run()
    except Exception as error:  # noqa: BLE001 (whatever torch raises is what the doctor wants)
        trial.outcome.error = _said(error)
        trial.leave()
        sys.stderr.write(f"rank {known[0]}: {error}\n")
        sys.stderr.flush()
        os._exit(1)


def ranked(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and world size, as the launcher gave them."""
    for rank, size in RANKS:
        found = number(environ, rank), number(environ, size)
        if found[0] is not None and found[1]:
            return found[0], found[1]
    return None


def facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """What a rank tells of itself."""
    host = socket.gethostname()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nccl = torch.cuda.nccl.version() if gpus and dist.is_nccl_available() else ()
    return {
        "host": host,
        "node": f"{environ.get('GROUP_RANK', '')}/{host}",
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "none",
            "nccl": ".".join(str(part) for part in nccl) or "none",
            "hangwatch": __version__,
            "python": platform.python_version(),
        },
        "gpus": gpus,
        "device": _device_name(environ, gpus),
        "environment": {name: environ[name] for name in ALIKE if name in environ},
    }


def _device_name(environ: Mapping[str, str], gpus: int) -> str:
    if not gpus:
        return ""
    index = (number(environ, "LOCAL_RANK") or 0) % gpus
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", index))


@dataclass(slots=True)
class _Trial:
    directory: str
    patience_s: float
    outcome: Outcome
    device: Any = field(default_factory=lambda: torch.device("cpu"))

    def run(self) -> None:
        rank, size = self.outcome.rank, self.outcome.world_size
        own = facts(os.environ)
        self.leave()
        store = self._store()
        self._at(Stage.ROLL_CALL)
        roll = roll_call.call(store, rank, own, size, self.patience_s)
        leaders = roll.leaders()
        self.outcome.ranks = [{"rank": one, **roll.ranks[one]} for one in sorted(roll.ranks)]
        self.outcome.missing = roll.missing
        if roll.missing:
            raise RuntimeError(f"{len(roll.missing)} of {size} ranks have not come")
        backend = "nccl" if all(one["gpus"] for one in roll.ranks.values()) else "gloo"
        self.outcome.backend = backend
        self._at(Stage.CONNECTIONS)
        self._connect(store, roll)
        self._at(Stage.INIT)
        if backend == "nccl":
            index = (number(os.environ, "LOCAL_RANK") or 0) % own["gpus"]
            self.device = torch.device("cuda", index)
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=init_s(self.patience_s)),
        )
        dist.all_reduce(torch.ones(1, device=self.device))
        self._at(Stage.TIMING)
        times = timing.world(self.device)
        pairs = timing.neighbours(leaders, rank, self.device)
        store.set(f"pairs/{rank}", json.dumps(pairs))
        dist.barrier()
        found = store.multi_get([f"pairs/{leader}" for leader in leaders])
        times["pairs"] = [pair for one in found for pair in json.loads(one)]
        self.outcome.times = times
        self._at(Stage.DONE)
        dist.barrier()  # rank 0 may have the store
        dist.destroy_process_group()

    def leave(self) -> None:
        self.outcome.leave(self.directory)

    def _at(self, stage: Stage) -> None:
        self.outcome.stage = stage
        self.leave()

    def _store(self) -> Any:
        """The job's own store, as init_process_group("env://") would make or join it."""
        environ, rank = os.environ, self.outcome.rank
        agents = environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        store = dist.TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            self.outcome.world_size,
            is_master=rank == 0 and not agents,
            timeout=timedelta(seconds=self.patience_s),
            wait_for_workers=False,
        )
        return dist.PrefixStore(f"doctor/{environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)

    def _connect(self, store: Any, roll: roll_call.Roll) -> None:
        """The first rank of each node tries; the others wait for what came of it."""
        if len(roll.leaders()) == 1:
            return
        rank = self.outcome.rank
        if rank in roll.leaders():
            address = self._address()
            self.outcome.broken = roll_call.try_connections(store, rank, roll, address, STEP_S)
            if rank == 0:
                store.set("broken", json.dumps(self.outcome.broken))
        roll_call.await_keys(store, ["broken"], 2 * STEP_S)
        broken = json.loads(store.get("broken"))
        if broken:
            raise RuntimeError(f"{len(broken)} connections between nodes do not come about")

    def _address(self) -> str:
        """What the backend would listen at."""
        present = interfaces()
        if self.outcome.backend == "nccl":
            settings = network.nccl_environment(os.environ, str(Path.home()))
            choice = network.nccl_choice(settings, present)
        else:
            hostname = socket.gethostname()
            choice = network.gloo_choice(os.environ, present, hostname, network.resolve)
        if choice.address is None:
            raise RuntimeError(f"{choice.why}: no such interface")
        return str(choice.address)


def _end_in(seconds: float) -> None:
    """Whatever hangs, this process does not."""

    def end() -> None:
        time.sleep(seconds + _OVERTIME_S)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _said(error: Exception) -> str:
    """The first line of what torch says, which may be long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}".rstrip(": ")
