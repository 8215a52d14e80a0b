"""Starts the ranks of a program by fork, as programs do that start them themselves.

What they need of torch is imported once for all of them: most of the seconds of a short job
go to that, where each of its ranks is started by itself.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import socket
import sys
from pathlib import Path

from torch.multiprocessing import start_processes

_IMPORTED = re.compile(r"^(?:from|import) (torch[\w.]*)", re.MULTILINE)
_IMPORTS_DYNAMO = re.compile(r"DistributedDataParallel|torch\.optim|torch\.compile")
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


if __name__ == "__main__":
    size, *command = sys.argv[1:]
    source = Path(command[0]).read_text("utf-8")
    for name in _IMPORTED.findall(source):
        importlib.import_module(name)
    if _IMPORTS_DYNAMO.search(source):
        importlib.import_module("torch._dynamo")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start_processes(_rank, (int(size), port, command), nprocs=int(size), start_method="fork")
