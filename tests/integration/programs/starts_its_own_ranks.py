"""Starts two ranks by multiprocessing (``spawn`` or ``fork``), which learn late who they are."""

import os
import sys

import launched
import torch.multiprocessing as mp


def rank(number: int, port: str) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({**where, "RANK": str(number), "WORLD_SIZE": "2"})
    launched.main()


if __name__ == "__main__":
    method, port = sys.argv[1:]
    del sys.argv[1:]
    mp.start_processes(rank, args=(port,), nprocs=2, start_method=method)
