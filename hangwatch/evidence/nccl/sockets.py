"""Who is at the other end of a TCP connection within this machine, from /proc (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_LISTEN, _ESTABLISHED = "0A", "01"
MAX_SOCKETS = 200_000
MAX_FILES = 65_536


class _Socket(NamedTuple):
    port: int
    peer_port: int
    state: str
    inode: str


def listens(port: int, pid: int, proc: str) -> bool:
    """Whether anybody listens on a port, in the network of a process."""
    return any(one.state == _LISTEN and one.port == port for one in _sockets(pid, proc))


def accepted_by(own_port: int, port: int, pids: Collection[int], proc: str) -> bool:
    """Whether one of these processes has accepted our connection from own_port to port."""
    inodes = {
        one.inode
        for one in _sockets(next(iter(pids)), proc)
        if (one.port, one.peer_port, one.state) == (port, own_port, _ESTABLISHED)
    }
    return _is_open(inodes, pids, proc)


def listened_by(port: int, pids: Collection[int], proc: str) -> bool:
    """Whether one of these processes listens on a port."""
    inodes = {
        one.inode
        for one in _sockets(next(iter(pids)), proc)
        if (one.port, one.state) == (port, _LISTEN)
    }
    return _is_open(inodes, pids, proc)


def _is_open(inodes: set[str], pids: Collection[int], proc: str) -> bool:
    wanted = {f"socket:[{inode}]" for inode in inodes - {"0"}}
    return bool(wanted) and any(wanted & set(open_files(pid, proc)) for pid in pids)


def _sockets(pid: int, proc: str) -> Iterator[_Socket]:
    for name in ("tcp", "tcp6"):
        try:
            with Path(proc, str(pid), "net", name).open("rb") as file:
                lines = list(islice(file, 1, MAX_SOCKETS))
        except OSError:
            continue
        for line in lines:
            fields = line.decode("ascii", "replace").split()
            if len(fields) > 9:  # noqa: PLR2004 (the inode is the tenth)
                yield _Socket(_port(fields[1]), _port(fields[2]), fields[3], fields[9])


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def open_files(pid: int, proc: str) -> Iterator[str]:
    """What the file descriptors of a process point to, as far as we may look."""
    try:
        with os.scandir(Path(proc, str(pid), "fd")) as entries:
            for entry in islice(entries, MAX_FILES):
                try:
                    yield os.readlink(entry.path)  # noqa: PTH115 (thousands of files)
                except OSError:
                    continue
    except OSError:
        return
