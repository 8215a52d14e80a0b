"""Which GPU each rank of this node would get."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangwatch.preflight.finding import Finding, ok, warn
from hangwatch.preflight.launchers import Line, read

CHECK = "devices"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices(environ: Mapping[str, str], gpus: int, local_ranks: int | None) -> list[Finding]:
    """GPUs of the machine (0: none, or not known) against the ranks of this node."""
    visible = environ.get(VISIBLE)
    if not gpus:
        return [ok(CHECK, "no GPU is seen: the ranks use the CPU")]
    named = _named(visible) if visible is not None else [str(index) for index in range(gpus)]
    shown = f"{VISIBLE}={visible}" if visible is not None else f"{_gpus(gpus)}"
    found = []
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        found.append(
            warn(
                CHECK,
                f"{shown} names {', '.join(twice)} twice: CUDA sees no device at all",
                "name each device once",
            )
        )
    absent = [name for name in named if name.isdecimal() and int(name) >= gpus]
    if absent:
        found.append(
            warn(
                CHECK,
                f"{shown} names {absent[0]}, and there are {_gpus(gpus)}: it hides what follows",
                f"use 0 to {gpus - 1}",
            )
        )
    usable = len(named[: named.index(absent[0])]) if absent else len(named)
    if local_ranks and not twice and local_ranks > usable > 0:
        found.append(
            warn(
                CHECK,
                f"{local_ranks} ranks on {_gpus(usable)} ({shown}): NCCL refuses two ranks on one",
                f"start {usable} a node (--nproc-per-node={usable}), or make more visible",
            )
        )
    if local_ranks and not found and usable == 0:
        found.append(
            warn(CHECK, f"{shown}: the GPUs are hidden from the ranks", f"unset {VISIBLE}")
        )
    if found:
        return found
    ranks = f"for {local_ranks} rank{'s' if local_ranks != 1 else ''}" if local_ranks else "visible"
    return [ok(CHECK, f"{_gpus(usable)} {ranks} ({shown})")]


def _named(visible: str) -> list[str]:
    """What CUDA makes of the list: it ends at the first that is none."""
    names = []
    for name in visible.split(","):
        text = name.strip()
        if not text or text.startswith("-"):
            break
        names.append(text)
    return names


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count != 1 else ''}"


RENDEZVOUS_PORT = 29400
"""Of torchrun's c10d rendezvous where the endpoint names none (torch/distributed/elastic)."""
MASTER_PORT = 29500
"""Of torchrun's static rendezvous and of Accelerate and DeepSpeed."""
_NODES = {
    "torchrun": "--nnodes",
    "accelerate": "--num-machines",
    "deepspeed": "--num-nodes",
}
_NODE_RANK = {
    "torchrun": "--node-rank",
    "accelerate": "--machine-rank",
    "deepspeed": "--node-rank",
}
_ADDRESS = {
    "torchrun": ("--master-addr", "--master-port"),
    "accelerate": ("--main-process-ip", "--main-process-port"),
    "deepspeed": ("--master-addr", "--master-port"),
}
_ENDPOINT = re.compile(r"\[(?P<ip6>[^]]+)\](?::(?P<port6>\d+))?|(?P<host>[^:]+)(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is meant to be; None where nothing says so."""

    launcher: str = ""
    """As Line.launcher; it gives the ranks their variables where it is a real one."""
    nodes: int | None = None
    """At least so many."""
    node_rank: int | None = None
    host: str = ""
    """Where the ranks, or the launchers, meet; empty where nothing names a place."""
    port: int | None = None
    local_ranks: int | None = None

    @property
    def several_nodes(self) -> bool:
        """Whether it is known to use several nodes."""
        return self.nodes is not None and self.nodes > 1

    @property
    def launched(self) -> bool:
        """Whether a launcher of its own gives the ranks their variables."""
        return self.launcher in _NODES


def job(environ: Mapping[str, str], command: Sequence[str] = ()) -> Job:
    """What environment and line say together; the line wins."""
    line = read(command) if command else None
    if line is not None and line.launcher in _NODES:
        return _launched(line, environ)
    world, local = number(environ, "WORLD_SIZE"), number(environ, "LOCAL_WORLD_SIZE")
    nodes = None
    if world is not None and local:
        nodes = -(-world // local)
    elif world == 1:
        nodes = 1
    return Job(
        launcher=line.launcher if line else "",
        nodes=nodes,
        node_rank=number(environ, "GROUP_RANK"),
        host=environ.get("MASTER_ADDR", ""),
        port=number(environ, "MASTER_PORT"),
        local_ranks=local,
    )


def number(environ: Mapping[str, str], name: str) -> int | None:
    """A variable as a number, None where it is none."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def endpoint(text: str, otherwise: int) -> tuple[str, int]:
    """Host and port of ``host[:port]`` or ``[ip6][:port]``; an IPv6 address alone is a host."""
    found = _ENDPOINT.fullmatch(text)
    if found is None:
        return text, otherwise
    port = found["port"] or found["port6"]
    return found["host"] or found["ip6"], int(port) if port else otherwise


def _launched(line: Line, environ: Mapping[str, str]) -> Job:
    options = line.options
    if line.launcher == "torchrun":
        options = {**_torchruns_own(environ), **options}
        if "--standalone" in options:
            ranks = _count(options.get("--nproc-per-node", "1"))
            return Job(line.launcher, 1, 0, local_ranks=ranks)
    host, port = _meeting_place(line.launcher, options)
    nodes = options.get(_NODES[line.launcher], "")
    return Job(
        line.launcher,
        _count(nodes.partition(":")[0]) if nodes else _default_nodes(line),
        _count(options.get(_NODE_RANK[line.launcher], "")),
        host,
        port,
        _local_ranks(line.launcher, options),
    )


def _torchruns_own(environ: Mapping[str, str]) -> dict[str, str]:
    """Each option of torchrun also as a variable: PET_RDZV_ENDPOINT for --rdzv-endpoint."""
    found = {
        f"--{name.removeprefix('PET_').lower().replace('_', '-')}": value
        for name, value in environ.items()
        if name.startswith("PET_")
    }
    if found.get("--standalone", "1") != "1":
        del found["--standalone"]
    return found


def _meeting_place(launcher: str, options: Mapping[str, str]) -> tuple[str, int | None]:
    if options.get("--rdzv-endpoint"):
        static = options.get("--rdzv-backend", "static") == "static"
        return endpoint(options["--rdzv-endpoint"], MASTER_PORT if static else RENDEZVOUS_PORT)
    address, port = _ADDRESS[launcher]
    if not options.get(address):
        return "", None
    return options[address], _count(options.get(port, "")) or MASTER_PORT


def _default_nodes(line: Line) -> int | None:
    """Of a line that does not say; Accelerate's and DeepSpeed's files may."""
    return 1 if line.launcher == "torchrun" else None


def _local_ranks(launcher: str, options: Mapping[str, str]) -> int | None:
    if launcher == "torchrun":
        return _count(options.get("--nproc-per-node", "1"))
    if launcher == "deepspeed":
        return _count(options.get("--num-gpus", "") or options.get("--num-accelerators", ""))
    total = _count(options.get("--num-processes", ""))
    machines = _count(options.get("--num-machines", "1"))
    return total // machines if total and machines else None


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None
