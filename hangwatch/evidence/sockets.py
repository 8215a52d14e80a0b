"""TCP sockets of this machine and the processes that hold them, from /proc (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hangwatch.evidence.processes import PROC, command_line

MAX_SOCKETS = 200_000
MAX_FILES = 65_536
_LISTEN, _ESTABLISHED = "0A", "01"
_SHOWN = 60
"""Characters of a command line."""


class Socket(NamedTuple):
    """A line of /proc/net/tcp (proc_net_tcp.rst); its ends are ``ADDRESS:PORT`` in hexadecimal."""

    local: str
    remote: str
    state: str
    inode: str

    @property
    def listens(self) -> bool:
        """True for a socket that waits for connections."""
        return self.state == _LISTEN

    @property
    def is_connected(self) -> bool:
        """True for an established connection."""
        return self.state == _ESTABLISHED

    @property
    def port(self) -> int:
        """The port at this end."""
        return int(self.local.rpartition(":")[2], 16)

    @property
    def peer_port(self) -> int:
        """The port at the other end."""
        return int(self.remote.rpartition(":")[2], 16)


def sockets(process: str) -> Iterator[Socket]:
    """Yield the sockets in the network namespace of a process (``/proc/PID``, or ``/proc``)."""
    for table in ("tcp", "tcp6"):
        try:
            with Path(process, "net", table).open("rb") as file:
                lines = list(islice(file, 1, MAX_SOCKETS))
        except OSError:
            continue
        for line in lines:
            fields = line.decode("ascii", "replace").split()
            if len(fields) > 9:  # noqa: PLR2004 (the inode is the tenth)
                yield Socket(fields[1], fields[2], fields[3], fields[9])


def open_files(pid: int, proc: str = PROC) -> Iterator[str]:
    """Yield the targets of a process's file descriptors, as far as they may be read."""
    try:
        with os.scandir(Path(proc, str(pid), "fd")) as entries:
            for entry in islice(entries, MAX_FILES):
                try:
                    yield os.readlink(entry.path)  # noqa: PTH115 (thousands of files)
                except OSError:
                    continue
    except OSError:
        return


def holds(pid: int, inodes: Collection[str], proc: str = PROC) -> bool:
    """Return True if a process has one of these sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes if inode != "0"}
    return bool(wanted) and not wanted.isdisjoint(open_files(pid, proc))


def listener(port: int, proc: str = PROC) -> str:
    """Return the process that listens on a port: ``process PID (command)``; empty for none.

    The open files of other users' processes cannot be read: then it is "another process".
    """
    inodes = {one.inode for one in sockets(proc) if one.listens and one.port == port}
    if not inodes:
        return ""
    for pid in (int(path.name) for path in Path(proc).iterdir() if path.name.isdecimal()):
        if holds(pid, inodes, proc):
            line = command_line(pid, proc)[:_SHOWN]
            return f"process {pid} ({line})" if line else f"process {pid}"
    return "another process"


def listens_at(pid: int, address: str, proc: str = PROC) -> bool:
    """Return True if a process listens at an address, on any port."""
    found = sockets(f"{proc}/{pid}")
    inodes = {one.inode for one in found if one.listens and _address(one.local) == address}
    return holds(pid, inodes, proc)


def peers(port: int, proc: str = PROC) -> list[str]:
    """Return the addresses of other machines that are connected to a port of this one."""
    ends = {
        (_address(one.local), _address(one.remote))
        for one in sockets(proc)
        if one.is_connected and one.port == port
    }
    return sorted({remote for local, remote in ends if remote != local})


def _address(end: str) -> str:
    """Return the address of an end: words of four bytes, each in the host's order."""
    raw = bytes.fromhex(end.partition(":")[0])
    address = ip_address(b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)))
    return str(getattr(address, "ipv4_mapped", None) or address)
