"""The network interfaces of this machine, in the order in which gloo and NCCL see them.

Both ask getifaddrs(3) and take the first that fits, so its order is part of the answer
and no other source will do.
"""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

_UP, _RUNNING = 0x1, 0x40  # net/if.h
_AT4, _AT6 = 4, 8
"""Where the address stands in sockaddr_in and sockaddr_in6 (ip(7), ipv6(7))."""


@dataclass(frozen=True, slots=True)
class Interface:
    """An address of an interface: one with several addresses is there several times."""

    name: str
    address: IPv4Address | IPv6Address
    up: bool = True
    """Up and with a carrier."""

    @property
    def family(self) -> int:
        """AF_INET or AF_INET6."""
        return socket.AF_INET if self.address.version == 4 else socket.AF_INET6  # noqa: PLR2004

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


class _IfAddrs(ctypes.Structure):
    """struct ifaddrs of getifaddrs(3), as far as it is read."""


_IfAddrs._fields_ = (
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("addr", ctypes.c_void_p),
)


def interfaces() -> tuple[Interface, ...]:
    """All addresses of this machine. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    found = []
    try:
        entry = first
        while entry:
            one = entry.contents
            address = _address(one.addr) if one.addr else None
            if address is not None:
                up = one.flags & (_UP | _RUNNING) == _UP | _RUNNING
                found.append(Interface(one.name.decode("utf-8", "replace"), address, up))
            entry = one.next
    finally:
        libc.freeifaddrs(first)
    return tuple(found)


def _address(where: int) -> IPv4Address | IPv6Address | None:
    family = ctypes.cast(where, ctypes.POINTER(ctypes.c_ushort)).contents.value
    if family == socket.AF_INET:
        return ip_address(ctypes.string_at(where + _AT4, 4))
    if family == socket.AF_INET6:
        return ip_address(ctypes.string_at(where + _AT6, 16))
    return None
