"""Starts the ranks of a program by fork, as programs do that start them themselves.

torch is imported once for all of them: most of the seconds of a short job go to that, where
each of its ranks is started by itself.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 (a model in DistributedDataParallel imports it)
from torch.multiprocessing import start_processes


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
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start_processes(_rank, (int(size), port, command), nprocs=int(size), start_method="fork")
