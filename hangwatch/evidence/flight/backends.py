"""What the Flight Recorder's entries mean, by the backend of their calls.

===============  ====================  =====================  ==============================
backend          recorded by           numbers of a group     a call is complete
===============  ====================  =====================  ==============================
gloo             itself                collectives; no p2p    once it is retired
nccl, xccl       itself                collectives and p2p    in the state ``completed``, or
                                       apart; coalesced       by the status of its group
                                       calls have one
any other        a hook of torch's,    collectives and p2p    in the state ``completed``,
                 from 2.15 on          apart; ``op_id``       which a batched p2p call has as
                                       counts all             soon as it is issued
===============  ====================  =====================  ==============================

Sources: torch/csrc/distributed/c10d, ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp,
hooks/FlightRecorderHook.cpp, nccl2/ProcessGroupNCCLBackend.cpp. A hook counts no call that is
captured into a graph, which the backend counts; ``op_id`` is made before that is known, and counts
what other backends of the group run too. A barrier has no tensor that tells where it runs: the hook
takes it for one of the group's default backend. It
retires a call that its backend will not tell of as soon as it is issued, in the state
``scheduled``. Of p2p calls the page knows better (channels.py); a dump alone has nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hangwatch.model.flight import FlightDump, FlightEntry
from hangwatch.model.operations import ON_HOST, RECORD_THEMSELVES
from hangwatch.model.page import PageGroup


def is_hooked(entry: FlightEntry) -> bool:
    """Whether a hook of torch's recorded a call, since its backend records none."""
    return entry.backend != "" and entry.backend not in RECORD_THEMSELVES


def is_silent(entry: FlightEntry) -> bool:
    """Whether it will never be known when a call is complete: its backend does not tell."""
    return is_hooked(entry) and entry.retired and entry.state != "completed"


def runs_on_device(backend: str) -> bool:
    """Whether a device runs a backend's calls; one that nobody knows here is taken to."""
    return backend != "" and backend not in ON_HOST


def numbered(entry: FlightEntry) -> FlightEntry:
    """A hook's entry with the number that its backend counts: captured calls are in it."""
    if not is_hooked(entry) or entry.p2p or entry.op_id < 0:
        return entry
    return replace(entry, seq=entry.op_id + 1 - entry.p2p_before)


def with_devices(dump: FlightDump, groups: Iterable[PageGroup]) -> FlightDump:
    """A dump whose entries say where they run, as the groups of its rank have it."""
    devices: dict[str, set[str]] = {}
    for group in groups:
        for part in group.backend.split(","):
            device, _, name = part.rpartition(":")
            devices.setdefault(name, set()).add(device)
    hosts = {name for name, used in devices.items() if used == {"cpu"} and runs_on_device(name)}
    if not hosts:
        return dump
    return replace(
        dump,
        entries=tuple(
            replace(entry, device=False) if entry.backend in hosts else entry
            for entry in dump.entries
        ),
    )
