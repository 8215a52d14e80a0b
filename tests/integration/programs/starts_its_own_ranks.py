"""Starts two ranks by multiprocessing (``spawn`` or ``fork``), which learn late who they are."""

import os
import socket
import sys

import launched
import torch.multiprocessing as mp


def rank(number: int, port: int) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({**where, "RANK": str(number), "WORLD_SIZE": "2"})
    launched.main()


if __name__ == "__main__":
    method = sys.argv.pop()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mp.start_processes(rank, args=(port,), nprocs=2, start_method=method)
