"""The network interfaces of this machine, in the order in which gloo and NCCL see them.

Both ask getifaddrs(3) and take the first that fits, so its order is part of the answer
and no other source will do.

gloo (torch/csrc/distributed/c10d/init.cpp, ProcessGroupGloo.cpp createDefaultDevice;
gloo/transport/tcp/device.cc): the first address of each interface in
GLOO_SOCKET_IFNAME, else the first local address that the machine's name resolves to,
else 127.0.0.1. NCCL (src/misc/socket.cc ncclFindInterfaces): NCCL_SOCKET_IFNAME as
prefixes, ``=`` for whole names, ``^`` to leave out; else interfaces that begin with
"ib", else all but docker, lo and virbr, else docker, else lo, else virbr.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from hangwatch.preflight import Finding, fail, ok, warn
from hangwatch.preflight.job import Job
from hangwatch.safety import untrusted

_UP, _RUNNING = 0x1, 0x40  # net/if.h
_AT4, _AT6 = 4, 8
"""Offsets of the address in sockaddr_in and sockaddr_in6 (ip(7), ipv6(7))."""
GLOO, NCCL = "gloo", "nccl"
_GLOO_VARIABLE, _NCCL_VARIABLE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_VIRTUAL = ("docker", "virbr", "br-", "cni", "flannel", "podman", "lxc")
"""Bridges to the containers of this machine: no other machine is behind them."""
_VERSIONS = {"AF_INET": 4, "AF_INET6": 6}
"""Of IP, by the values of NCCL_SOCKET_FAMILY."""
_AUTOMATIC = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
MAX_CONF_BYTES = 1 << 20
"""Of a nccl.conf so much is read."""
Address = IPv4Address | IPv6Address
Resolve = Callable[[str], Sequence[str]]
"""Returns the addresses of a name, in the resolver's order. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of an interface; an interface with several addresses has several of these."""

    name: str
    address: Address
    up: bool = True
    """Up and with a carrier."""


class _IfAddrs(ctypes.Structure):
    """The first fields of struct ifaddrs of getifaddrs(3)."""


_IfAddrs._fields_ = (
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("addr", ctypes.c_void_p),
)


def interfaces() -> tuple[Interface, ...]:
    """Return all addresses of this machine. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    addresses = []
    try:
        entry = first
        while entry:
            content = entry.contents
            address = _address(content.addr) if content.addr else None
            if address is not None:
                up = content.flags & (_UP | _RUNNING) == _UP | _RUNNING
                addresses.append(Interface(content.name.decode("utf-8", "replace"), address, up))
            entry = content.next
    finally:
        libc.freeifaddrs(first)
    return tuple(addresses)


def _address(where: int) -> Address | None:
    family = ctypes.cast(where, ctypes.POINTER(ctypes.c_ushort)).contents.value
    if family == socket.AF_INET:
        return ip_address(ctypes.string_at(where + _AT4, 4))
    if family == socket.AF_INET6:
        return ip_address(ctypes.string_at(where + _AT6, 16))
    return None


@dataclass(frozen=True, slots=True)
class Choice:
    """The address that a backend would use."""

    address: Address | None
    """None if there is none: the backend raises."""
    interface: str
    why: str


def resolve(name: str) -> tuple[str, ...]:
    """Return the addresses of a name as getaddrinfo(3) orders them. Raises OSError."""
    answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers))


def gloo_choice(
    environ: Mapping[str, str], present: Sequence[Interface], hostname: str, resolver: Resolve
) -> Choice:
    """Return the address at which gloo would listen."""
    wanted = environ.get(_GLOO_VARIABLE, "")
    if len(wanted) > 1:  # as torch counts it
        why, names = f"{_GLOO_VARIABLE}={wanted}", wanted.split(",")
        first = {interface.name: interface.address for interface in reversed(present)}
        absent = next((name for name in names if name not in first), None)
        if absent is not None:
            return Choice(None, absent, why)
        return Choice(first[names[0]], names[0], why)
    try:
        addresses = [ip_address(text) for text in resolver(hostname)]
    except (OSError, ValueError):
        addresses = []
    for address in addresses:
        owner = _owner(address, present)
        if owner:
            return Choice(address, owner, f"the name of this machine, {hostname}, resolves to it")
    where = f"to {addresses[0]}, which is not of this machine" if addresses else "to nothing"
    why = f"the name of this machine, {hostname}, resolves {where}"
    return Choice(IPv4Address("127.0.0.1"), "lo", why)


def nccl_choice(environ: Mapping[str, str], present: Sequence[Interface]) -> Choice:
    """Return the address at which NCCL would meet; data may take others, or InfiniBand."""
    family = environ.get("NCCL_SOCKET_FAMILY", "")
    usable = [
        interface
        for interface in present
        if interface.up
        and interface.address.version == _VERSIONS.get(family, interface.address.version)
        and not (interface.address.version == 6 and interface.address.is_loopback)  # noqa: PLR2004
    ]
    wanted = environ.get(_NCCL_VARIABLE, "")
    patterns: Sequence[str] = _AUTOMATIC
    why = f"{_NCCL_VARIABLE} is not set"
    if len(wanted) > 1:
        patterns, why = (wanted,), f"{_NCCL_VARIABLE}={wanted}"
    for pattern in patterns:
        if fitting := matching(pattern, usable):
            return Choice(fitting[0].address, fitting[0].name, why)
    if len(wanted) <= 1:
        known = family in _VERSIONS
        why = f"NCCL_SOCKET_FAMILY={family}" if known else "there is no interface"
    return Choice(None, "", why)


def matching(pattern: str, present: Sequence[Interface]) -> list[Interface]:
    """Return the interfaces that fit a pattern of NCCL_SOCKET_IFNAME, in their own order."""
    without = pattern.startswith("^")
    exact = pattern[without:].startswith("=")
    names = [name for name in pattern[without + exact :].split(",") if name]

    def fits(name: str) -> bool:
        return name in names if exact else name.startswith(tuple(names))

    return [interface for interface in present if not names or fits(interface.name) is not without]


def nccl_environment(
    environ: Mapping[str, str], home: str, system: str = "/etc/nccl.conf"
) -> dict[str, str]:
    """Return NCCL's variables, its files too: the environment wins, then the user's file."""
    own = environ.get("NCCL_CONF_FILE") or str(Path(home, ".nccl.conf"))
    settings: dict[str, str] = {}
    for path in (system, own):
        try:
            content = untrusted.read(Path(path), MAX_CONF_BYTES, follow=True)
        except OSError:
            continue
        for line in content.decode("utf-8", "replace").splitlines():
            name, equals, value = line.strip().partition("=")
            if equals and name.startswith("NCCL_"):
                settings[name] = value
    return {**settings, **environ}


def gloo(choice: Choice, job: Job, present: Sequence[Interface], *, used: bool) -> Finding:
    """Check gloo's choice. used: jobs on this machine need gloo."""
    bad = fail if used else warn
    if choice.address is None:
        names = _names(present)
        return bad(
            GLOO,
            f"{choice.why}: there is no interface {choice.interface or repr('')} here",
            f"name one of: {names} (whole names, with commas)",
        )
    shown = f"gloo would use {choice.address} on {choice.interface} ({choice.why})"
    if choice.address.is_loopback:
        remedy = f"{_naming(_GLOO_VARIABLE, present)}, or correct /etc/hosts"
        if job.several_nodes:
            return bad(GLOO, f"{shown}: ranks of other nodes cannot connect to that", remedy)
        if job.nodes is None and _suggestion(present):
            return warn(GLOO, f"{shown}: fine on one node, not on several", remedy)
        return ok(GLOO, shown)
    return _local_only(GLOO, shown, choice, job, _naming(_GLOO_VARIABLE, present))


def nccl(choice: Choice, job: Job, present: Sequence[Interface], *, used: bool) -> Finding:
    """Check NCCL's choice. used: jobs on this machine have GPUs."""
    bad = fail if used else warn
    if choice.address is None:
        names = _names(interface for interface in present if interface.up)
        return bad(
            NCCL,
            f"{choice.why}: no interface that is up fits",
            f"up are: {names}; eth0 is a prefix, =eth0 a whole name, ^docker leaves out",
        )
    shown = f"NCCL would meet at {choice.address} on {choice.interface} ({choice.why})"
    remedy = _naming(_NCCL_VARIABLE, present)
    if choice.address.is_loopback:
        if job.several_nodes:
            return bad(NCCL, f"{shown}: other nodes cannot connect to that", remedy)
        return ok(NCCL, shown)
    return _local_only(NCCL, shown, choice, job, remedy)


def _names(interfaces: Iterable[Interface]) -> str:
    return ", ".join(dict.fromkeys(interface.name for interface in interfaces)) or "none"


def _local_only(check: str, shown: str, choice: Choice, job: Job, remedy: str) -> Finding:
    """Warn of a bridge to containers, or a link-local address, if other nodes must come in."""
    if job.nodes != 1 and choice.interface.startswith(_VIRTUAL):
        what = f"{shown}: a bridge of this machine, which others do not reach"
        return warn(check, what, remedy)
    if job.nodes != 1 and choice.address is not None and choice.address.is_link_local:
        return warn(check, f"{shown}: an address of the link alone", remedy)
    return ok(check, shown)


def _naming(variable: str, present: Sequence[Interface]) -> str:
    better = _suggestion(present)
    if better:
        return f"set {variable}={better}"
    return f"bring up the interface that the others reach, and name it by {variable}"


def _suggestion(present: Sequence[Interface]) -> str:
    """Return the interface that other nodes most likely reach, empty if there is none."""
    for interface in present:
        address = interface.address
        if (
            interface.up
            and not (address.is_loopback or address.is_link_local)
            and not interface.name.startswith((*_VIRTUAL, "veth", "lo"))
        ):
            return interface.name
    return ""


def _owner(address: Address, present: Sequence[Interface]) -> str:
    """Return the interface that has an address, empty if none has: bind(2) would fail."""
    for interface in present:
        if interface.address == address:
            return interface.name
    return "lo" if address.version == 4 and address.is_loopback else ""  # noqa: PLR2004
