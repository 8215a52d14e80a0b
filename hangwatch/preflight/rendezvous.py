"""Checks of the address where the ranks meet: its name, the way there, and its listener."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from hangwatch.preflight import Finding, fail, ok, timing, warn
from hangwatch.preflight.job import Job
from hangwatch.preflight.network import Address, Interface, Resolve

CHECK = "rendezvous"


class Answer(StrEnum):
    """The result of an attempt to connect."""

    LISTENS = "listens"
    REFUSED = "refused"
    """The machine is there, but no process listens on the port (yet)."""
    SILENT = "silent"
    """No answer: no such machine, or a firewall that drops."""
    UNREACHABLE = "unreachable"
    """The network knows no route."""


_UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EACCES, errno.EPERM}
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address where the ranks meet, as far as it is known."""

    host: str
    port: int
    addresses: tuple[Address, ...]
    """In the resolver's order; empty if the name does not resolve."""
    error: str = ""
    """The reason if it does not."""
    here: bool = False
    """One of them is of this machine."""
    own_name: bool = False
    """The host is called by the name of this machine."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def connect(address: str, port: int, timeout_s: float = timing.CONNECT_S) -> Answer:
    """Connect over TCP and close at once: a store takes that for a client that left."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(timeout_s)
            client.connect((address, port))
    except TimeoutError:
        return Answer.SILENT
    except OSError as error:
        return Answer.UNREACHABLE if error.errno in _UNREACHABLE else Answer.REFUSED
    return Answer.LISTENS


def look_up(
    host: str, port: int, present: Sequence[Interface], resolver: Resolve, hostname: str
) -> Endpoint:
    """Look up the address where the ranks meet."""
    try:
        addresses = tuple(ip_address(text) for text in resolver(host))
    except (OSError, ValueError) as error:
        return Endpoint(host, port, (), getattr(error, "strerror", None) or str(error))
    own = {interface.address for interface in present}
    here = any(address in own or address.is_loopback for address in addresses)
    named = host in (hostname, hostname.partition(".")[0]) or host.startswith(f"{hostname}.")
    return Endpoint(host, port, addresses, here=here, own_name=named)


def resolution(where: Endpoint, job: Job) -> Finding | None:
    """Return the problem with the name, None if it is fine.

    The machine itself may know its own name as 127.0.1.1 (Debian's /etc/hosts): the
    store there listens at all addresses. Any other node would connect to itself.
    """
    if not where.addresses:
        return fail(
            CHECK,
            f"{where.host} does not resolve here ({where.error}): no rank of this node can come",
            f"use its address, or put {where.host} into DNS or /etc/hosts of every node",
        )
    first = where.addresses[0]
    itself = where.own_name and job.node_rank in (None, 0)
    if first.is_loopback and job.several_nodes and not itself:
        shown = (
            where.host if where.host == str(first) else f"{where.host} resolves to {first}, which"
        )
        return fail(
            CHECK,
            f"{shown} is this node itself, on a job of {job.nodes} nodes",
            "use the address of the first node that the others reach, on all nodes alike",
        )
    return None


def reachable(
    where: Endpoint, job: Job, probe: Callable[[str, int], Answer], owner: Callable[[int], str]
) -> Finding:
    """Check that a rank of this node would get there.

    probe(address, port) connects; owner(port) names the process that listens here.
    """
    if where.here:
        holder = owner(where.port)
        if holder:
            return warn(
                CHECK,
                f"{where} is this machine, and {holder} listens there",
                "fine if that is this job; if it is another one, use another port",
            )
        return ok(CHECK, f"{where} is this machine, and the port is free")
    answers = {str(address): probe(str(address), where.port) for address in where.addresses}
    shown = ", ".join(answers)
    if Answer.LISTENS in answers.values():
        silent = [address for address, answer in answers.items() if answer is not Answer.LISTENS]
        if silent and next(iter(answers.values())) is not Answer.LISTENS:
            return warn(
                CHECK,
                f"{where} answers, but not at {silent[0]}, which is tried first",
                f"use the address that answers in the place of {where.host}",
            )
        return ok(CHECK, f"{where} answers ({shown})")
    if Answer.REFUSED in answers.values():
        return warn(
            CHECK,
            f"{where} is reached ({shown}), but no process listens on the port",
            "fine before the first node has started; else it has ended, or uses another port",
        )
    why = "no route" if Answer.UNREACHABLE in answers.values() else "no answer"
    return fail(
        CHECK,
        f"{where} is not reached from here ({shown}: {why} within {timing.CONNECT_S:g} s)",
        _way(where, job),
    )


def _way(where: Endpoint, job: Job) -> str:
    family = {address.version for address in where.addresses}
    only = "IPv6 " if family == {6} else ""
    port = f"port {where.port} and, for the ranks, all ports above 1024"
    nodes = "between the nodes" if job.several_nodes else "to it"
    return f"check the address and the {only}route, and let the firewall pass {port} {nodes}"
