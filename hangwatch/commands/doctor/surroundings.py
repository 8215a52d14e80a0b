"""What of this machine and of a job's variables would make the job hang."""

from __future__ import annotations

import queue
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hangwatch.errors import UsageError
from hangwatch.preflight import limits, network, rendezvous
from hangwatch.preflight.contract import contract
from hangwatch.preflight.devices import devices
from hangwatch.preflight.finding import Finding, fail, ok, warn
from hangwatch.preflight.interfaces import Interface, interfaces
from hangwatch.preflight.job import Job
from hangwatch.preflight.network import Resolve
from hangwatch.preflight.ptrace import ptrace
from hangwatch.preflight.timeouts import timeouts
from hangwatch.settings import options

RESOLVE_S = 10.0
_DEVICE = re.compile(r"nvidia[0-9]+")


def surroundings(environ: Mapping[str, str], job: Job) -> Iterator[Finding]:
    """One finding after the other; looks names up and connects to the rendezvous."""
    yield ptrace()
    gpus = gpus_seen()
    yield from devices(environ, gpus, job.local_ranks)
    yield limits.shared_memory()
    yield limits.memory(job.local_ranks)
    yield limits.open_files(_world_size(environ, job))
    yield limits.cores()
    yield from _timeouts(environ)
    yield from contract(environ, job)
    try:
        present = interfaces()
    except OSError as error:
        yield warn("interfaces", f"cannot be listed: {error.strerror}", "")
        return
    hostname = socket.gethostname()
    yield from meeting_place(job, present, hostname)
    gloo = network.gloo_choice(environ, present, hostname, in_time)
    yield network.gloo(gloo, job, present, used=not gpus)
    nccl = network.nccl_choice(network.nccl_environment(environ, str(Path.home())), present)
    yield network.nccl(nccl, job, present, used=gpus > 0)


def meeting_place(job: Job, present: Sequence[Interface], hostname: str) -> Iterator[Finding]:
    """Where the ranks, or their launchers, would meet."""
    if job.nodes == 1 and not job.host:
        yield ok(rendezvous.CHECK, "one node: the launcher finds a place")
        return
    if not job.host or job.port is None:
        if job.several_nodes:
            yield fail(
                rendezvous.CHECK,
                f"{job.nodes} nodes, and nothing says where they meet",
                "name the first node: --rdzv-endpoint or --master-addr, or MASTER_ADDR",
            )
        else:
            yield ok(rendezvous.CHECK, "no MASTER_ADDR and MASTER_PORT: the launcher sets them")
        return
    where = rendezvous.place(job.host, job.port, present, in_time, hostname)
    wrong = rendezvous.resolution(where, job)
    if wrong:
        yield wrong
    else:
        yield rendezvous.reachable(where, job, rendezvous.connect, rendezvous.listener)


def in_time(
    name: str, within_s: float = RESOLVE_S, resolver: Resolve = network.resolve
) -> Sequence[str]:
    """The addresses of a name, without waiting for a dead name server. Raises OSError."""
    answers: queue.SimpleQueue[Sequence[str] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(resolver(name))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=within_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {within_s:g} s") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def gpus_seen(directory: str = "/dev") -> int:
    """How many GPUs of NVIDIA's this container or machine has."""
    try:
        return sum(bool(_DEVICE.fullmatch(path.name)) for path in Path(directory).iterdir())
    except OSError:
        return 0


def _timeouts(environ: Mapping[str, str]) -> list[Finding]:
    try:
        settings = options.settings({}, environ)
    except UsageError as error:
        return [fail("timeouts", str(error), "correct or unset the variable")]
    return timeouts(environ, settings.suspect_after_s)


def _world_size(environ: Mapping[str, str], job: Job) -> int | None:
    text = environ.get("WORLD_SIZE", "")
    if text.isdecimal():
        return int(text)
    return job.nodes * job.local_ranks if job.nodes and job.local_ranks else None
