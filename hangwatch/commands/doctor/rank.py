"""One rank of a trial: it meets the others, connects, reduces a little, and writes its outcome.

Runs in the job's own interpreter, started by the job's own launcher. Standard library, torch
and the checks of preflight only.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hangwatch import __version__
from hangwatch.commands import timing
from hangwatch.commands.doctor.outcome import (
    Outcome,
    Roll,
    Stage,
    await_keys,
    call_roll,
    init_s,
    longest_s,
    try_connections,
)
from hangwatch.preflight import network
from hangwatch.preflight.job import number
from hangwatch.run.launchers import TASKS

ALIKE = (
    *("NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_COLLNET_ENABLE", "NCCL_CUMEM_ENABLE"),
    *("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_PROTO"),
    *("NCCL_SHM_DISABLE", "NCCL_SOCKET_FAMILY", "TORCH_NCCL_BLOCKING_WAIT"),
)
"""Variables that must be the same on all ranks."""
TIMES = 20
LARGE_TIMES = 3
SMALL_BYTES = 4
SIZES_BYTES = (1 << 20, 16 << 20, 256 << 20)
CPU_BYTES = 16 << 20
_FLOAT = 4


def main(arguments: Sequence[str]) -> None:
    """Run as one rank of a trial.

    arguments: the directory for the outcome, the seconds until all have to be there. Some
    launchers put a --local_rank before them.
    """
    directory, patience_s = arguments[-2], float(arguments[-1])
    known = ranked(os.environ)
    if known is None:
        Outcome(-1, 0, error="the line starts a process that is not a rank").leave(directory)
        return
    _end_in(longest_s(patience_s))
    trial = _Trial(directory, patience_s, Outcome(*known))
    try:
        trial.run()
    except Exception as error:  # noqa: BLE001 (the doctor wants anything that torch raises)
        trial.outcome.error = _first_line(error)
        trial.outcome.leave(directory)
        sys.stderr.write(f"rank {known[0]}: {error}\n")
        sys.stderr.flush()
        os._exit(1)


def ranked(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return (rank, world size) as the launcher gave them."""
    for rank, size in TASKS:
        given = number(environ, rank), number(environ, size)
        if given[0] is not None and given[1]:
            return given[0], given[1]
    return None


def facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts that ranks compare."""
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
        "device": _gpu_name(_gpu_index(environ, gpus)) if gpus else "",
        "environment": {name: environ[name] for name in ALIKE if name in environ},
    }


def _gpu_index(environ: Mapping[str, str], gpus: int) -> int:
    return (number(environ, "LOCAL_RANK") or 0) % gpus


def _gpu_name(index: int) -> str:
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
        self._at(Stage.STORE)
        store = self._store()
        self._at(Stage.ROLL_CALL)
        roll = call_roll(store, rank, own, size, self.patience_s)
        leaders = roll.leaders()
        self.outcome.ranks = [{"rank": n, **known} for n, known in sorted(roll.ranks.items())]
        self.outcome.missing = roll.missing
        if roll.missing:
            raise RuntimeError(f"{len(roll.missing)} of {size} ranks have not come")
        backend = "nccl" if all(known["gpus"] for known in roll.ranks.values()) else "gloo"
        self.outcome.backend = backend
        self._at(Stage.CONNECTIONS)
        self._connect(store, roll)
        self._at(Stage.INIT)
        if backend == "nccl":
            self.device = torch.device("cuda", _gpu_index(os.environ, own["gpus"]))
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
        times = measure(self.device)
        store.set(f"pairs/{rank}", json.dumps(measure_neighbours(leaders, rank, self.device)))
        dist.barrier()
        measured = store.multi_get([f"pairs/{leader}" for leader in leaders])
        times["pairs"] = [pair for pairs in measured for pair in json.loads(pairs)]
        self.outcome.times = times
        self._at(Stage.DONE)
        dist.barrier()  # rank 0 may have the store
        dist.destroy_process_group()

    def _at(self, stage: Stage) -> None:
        self.outcome.stage = stage
        self.outcome.leave(self.directory)

    def _store(self) -> Any:
        """Make or join the job's own store, as init_process_group("env://") would."""
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

    def _connect(self, store: Any, roll: Roll) -> None:
        """Let the first rank of each node try its connections; the others wait for the results."""
        if len(roll.leaders()) == 1:
            return
        rank = self.outcome.rank
        if rank in roll.leaders():
            self.outcome.broken = try_connections(
                store, rank, roll, self._address(), timing.TRIAL_STEP_S
            )
            if rank == 0:
                store.set("broken", json.dumps(self.outcome.broken))
        await_keys(store, ["broken"], 2 * timing.TRIAL_STEP_S)
        broken = json.loads(store.get("broken"))
        if broken:
            raise RuntimeError(f"{len(broken)} connections between nodes failed")

    def _address(self) -> str:
        """Return the address at which the backend would listen."""
        present = network.interfaces()
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
    """End this process in time, whatever hangs."""

    def end() -> None:
        time.sleep(seconds + timing.TRIAL_OVERTIME_S)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _first_line(error: Exception) -> str:
    """Return the first line of what torch says, which may be long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}".rstrip(": ")


def measure(device: Any) -> dict[str, Any]:
    """Time a barrier and all_reduces among all ranks, in seconds and bytes a second.

    The bandwidth is that of the bus, as nccl-tests defines it: 2 (n - 1) / n times the
    bytes, by the time. Every rank returns the same, the slowest rank's.
    """
    size = dist.get_world_size()

    def barrier() -> None:
        dist.barrier()
        _finish(device)

    def all_reduce(tensor: Any) -> None:
        dist.all_reduce(tensor)
        _finish(device)

    barrier()
    barrier_s = _slowest(_median(barrier, TIMES), device)
    small = torch.ones(1, device=device)
    latency_s = _slowest(_median(lambda: all_reduce(small), TIMES), device)
    reduces = [{"bytes": SMALL_BYTES, "seconds": latency_s}]
    for count in SIZES_BYTES:
        if device.type == "cpu" and count > CPU_BYTES:
            break
        tensor = torch.ones(count // _FLOAT, device=device)
        all_reduce(tensor)
        seconds = _slowest(_median(partial(all_reduce, tensor), LARGE_TIMES), device)
        bandwidth = 2 * (size - 1) / size * count / seconds
        reduces.append({"bytes": count, "seconds": seconds, "bus_bytes_per_s": bandwidth})
        if seconds > timing.REDUCE_MOST_S / 4:
            break
    return {"barrier_s": barrier_s, "all_reduce": reduces}


def measure_neighbours(leaders: Sequence[int], rank: int, device: Any) -> list[dict[str, Any]]:
    """Time a round trip between the first ranks of neighbouring nodes, as the lower rank saw it.

    In rounds, so that no node talks with two at a time.
    """
    measured = []
    for pairs in _rounds(leaders):
        for low, high in pairs:
            if rank in (low, high):
                times = _round_trip(high if rank == low else low, device, first=rank == low)
                if rank == low:
                    measured.append({"ranks": [low, high], **times})
        dist.barrier()
    return measured


def _rounds(leaders: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return the pairs of neighbours in a ring of nodes, with no node in a round twice."""
    pairs = list(pairwise(leaders))
    rounds = [pairs[0::2], pairs[1::2]]
    if len(leaders) > 2:  # noqa: PLR2004 (two nodes are neighbours once)
        rounds.append([(leaders[0], leaders[-1])])
    return [pairs for pairs in rounds if pairs]


def _round_trip(peer: int, device: Any, *, first: bool) -> dict[str, float]:
    small = torch.ones(1, device=device)
    large = torch.ones(SIZES_BYTES[0] // _FLOAT, device=device)

    def exchange(tensor: Any) -> None:
        for sends in (first, not first):
            if sends:
                dist.send(tensor, peer)
            else:
                dist.recv(tensor, peer)
        _finish(device)

    exchange(small)
    round_trip_s = _median(lambda: exchange(small), TIMES)
    exchange(large)
    seconds = _median(lambda: exchange(large), LARGE_TIMES)
    return {"round_trip_s": round_trip_s, "bytes_per_s": 2 * SIZES_BYTES[0] / seconds}


def _finish(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _slowest(seconds: float, device: Any) -> float:
    """Return the slowest rank's time."""
    tensor = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor.item())


def _median(step: Callable[[], None], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
