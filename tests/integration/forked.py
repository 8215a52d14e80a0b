"""Starts the ranks of a program by fork, as programs do that start them themselves.

What they need of torch is imported once for all of them: most of the seconds of a short job
go to that, where each of its ranks is started by itself.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import secrets
import socket
import sys
from pathlib import Path

from torch.multiprocessing import start_processes

_IMPORTED = re.compile(r"^(?:from|import) (torch[\w.]*)", re.MULTILINE)
_IMPORTS_DYNAMO = re.compile(
    r"DistributedDataParallel|torch\.optim|torch\.compile"
    r"|distribute_tensor|parallelize_module|fully_shard|FullyShardedDataParallel"
)
"""What imports ``torch._dynamo`` when it is first used."""


def _rank(number: int, size: int, port: int, command: list[str]) -> None:
    """Become a rank of the job, and run its program."""
    os.environ |= {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(number)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(size)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


def _unused_port() -> int:
    while True:
        port = secrets.randbelow(10_000) + 20_000  # below those that connections are given
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


if __name__ == "__main__":
    size, *command = sys.argv[1:]
    source = Path(command[0]).read_text("utf-8")
    for name in _IMPORTED.findall(source):
        importlib.import_module(name)
    if _IMPORTS_DYNAMO.search(source):
        importlib.import_module("torch._dynamo")
    start_processes(
        _rank, (int(size), _unused_port(), command), nprocs=int(size), start_method="fork"
    )
