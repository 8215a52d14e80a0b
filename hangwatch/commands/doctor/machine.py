"""Checks of this machine: hangwatch itself, the jobs that it watches, and their surroundings."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path

import hangwatch
from hangwatch.agent.environment import sitecustomize_directory
from hangwatch.commands import runs, timing
from hangwatch.commands.runs import RunPages
from hangwatch.errors import EvidenceError, UsageError
from hangwatch.evidence.background import in_thread
from hangwatch.evidence.gpu.nvml import NO_DRIVER
from hangwatch.evidence.gpu.reader import examine_gpus
from hangwatch.evidence.sockets import listener
from hangwatch.evidence.stacks import PySpy, find_py_spy
from hangwatch.model import native
from hangwatch.preflight import Finding, fail, machine, network, ok, rendezvous, warn
from hangwatch.preflight.job import Job, number
from hangwatch.preflight.network import Interface, Resolve
from hangwatch.preflight.variables import contract, timeouts
from hangwatch.run import rundir
from hangwatch.settings.config import Stacks, read_config
from hangwatch.text import counted, the_ranks

_NO_LIBRARY = "cannot open shared object file"
"""The message of dlopen for a library that is not there."""
OLDEST_TORCH = (2, 4)
_DEVICE = re.compile(r"nvidia[0-9]+")


def installation(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that hangwatch itself works on this machine, and how well."""
    where = Path(hangwatch.__file__).parent
    yield ok("hangwatch", f"{hangwatch.__version__} in {where}")
    yield ok("python", f"{platform.python_version()} ({sys.executable})")
    for name, look, remedy in (
        ("torch", _torch, "pip install torch, or run the doctor in the job's environment"),
        ("injection", lambda: f"by {sitecustomize_directory()}", "reinstall hangwatch"),
        ("recorder", _recorder, "install hangwatch where there is a C++ compiler"),
        ("beacons", _beacons, ""),
        ("stacks", _stacks, ""),
        ("gpus", examine_gpus, ""),
    ):
        try:
            yield ok(name, look())
        except (EvidenceError, OSError, ImportError, LookupError) as error:
            yield warn(name, str(error), remedy)
    yield _pages(environ)


def _torch() -> str:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise LookupError(f"not installed for {sys.executable}") from None
    with suppress(ValueError):
        major, minor, *_ = (int(part) for part in version.split(".")[:2])
        if (major, minor) < OLDEST_TORCH:
            oldest = ".".join(str(part) for part in OLDEST_TORCH)
            raise LookupError(f"{version} is too old: use {oldest} or later")
    return version


def _recorder() -> str:
    try:
        module = native.load()
    except ImportError as error:
        raise ImportError(f"Python: slower, and its pages need the GIL ({error})") from None
    return f"native, room for {module.MAX_GROUPS} groups a rank"


def _beacons() -> str:
    """Return the number of GPUs that can show the progress of streams."""
    try:
        module = native.load()
    except ImportError:
        raise LookupError("none: the native recorder writes them") from None
    devices, why = module.examine_beacons()
    if _NO_LIBRARY in why:
        return f"none: {NO_DRIVER}"
    if why:
        raise LookupError(f"none, the progress of GPUs is not known: {why}")
    return f"{counted(devices, 'GPU')} can show the progress of streams"


def _stacks() -> str:
    """Take the stack of a process that is started for it, as the watchdog does of a rank."""
    with subprocess.Popen(
        [sys.executable, "-Sc", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as sleeper:
        try:
            if sleeper.stdout:
                sleeper.stdout.readline()
            asyncio.run(PySpy(Stacks.PYTHON).dump(sleeper.pid, timing.DOCTOR_PY_SPY_S))
        finally:
            sleeper.kill()
    return f"{find_py_spy()} may read other processes"


def _pages(environ: Mapping[str, str]) -> Finding:
    """Check the directory for pages: the first base with room."""
    tried = []
    for base in rundir.bases(environ):
        try:
            space = os.statvfs(base)
        except OSError as error:
            tried.append(f"{base}: {error.strerror}")
            continue
        free = space.f_bavail * space.f_frsize
        tried.append(f"{base} has {free >> 20} MiB free")
        if free >= rundir.ENOUGH_BYTES and os.access(base, os.W_OK | os.X_OK):
            if len(tried) == 1:
                return ok("pages", tried[0])
            return warn("pages", "; ".join(tried), "set HANGWATCH_DIR to a directory in memory")
    return warn("pages", "; ".join(tried), "set HANGWATCH_DIR to a directory with 16 MiB and more")


def watched_jobs(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that all ranks of the watched jobs of this node are recorded, and how well."""
    active = runs.find(environ)
    if not active:
        yield ok("jobs", "no job is watched here")
    for run in active:
        yield from _watched_job(run)


def _watched_job(run: runs.Run) -> Iterator[Finding]:
    with RunPages(run.path) as pages:
        ranks = {rank: seen.light for rank, seen in pages.look().seen.items()}
        unrecorded = sorted(set(pages.unrecorded))
    degraded = False
    for field, problem, remedy in (
        (
            "recorder_reason",
            " recorded by Python, a few times a second",
            "install hangwatch with its native module for the job's interpreter",
        ),
        ("disarmed", " no longer recorded", "the job itself goes on"),
        (
            "torch_lacks",
            ", by their torch and libraries",
            "docs/compatibility.md and docs/limits.md say what is seen with which",
        ),
    ):
        reasons = {rank: reason for rank, page in ranks.items() if (reason := getattr(page, field))}
        for reason in sorted(set(reasons.values())):
            degraded = True
            affected = the_ranks(rank for rank, why in reasons.items() if why == reason)
            yield warn("jobs", f"{run.name}: {affected}{problem}: {reason}", remedy)
    for reason in unrecorded:
        degraded = True
        what = f"{run.name}: a rank is not recorded: {reason}"
        yield warn("jobs", what, "the job itself goes on")
    if not degraded:
        shown = f"{counted(len(ranks), 'rank')} recorded natively" if ranks else "no rank yet"
        yield ok("jobs", f"{run.name}: {shown}")


def surroundings(environ: Mapping[str, str], job: Job) -> Iterator[Finding]:
    """Check the machine for a job; resolves names and connects to the rendezvous."""
    yield machine.ptrace()
    gpus = gpus_seen()
    yield from machine.devices(environ, gpus, job.local_ranks)
    yield machine.shared_memory()
    yield machine.memory(job.local_ranks)
    all_ranks = job.nodes * job.local_ranks if job.nodes and job.local_ranks else None
    yield machine.open_files(number(environ, "WORLD_SIZE") or all_ranks)
    yield machine.cores()
    try:
        suspect_after_s = read_config({}, environ).suspect_after_s
    except UsageError as error:
        yield fail("timeouts", str(error), "correct or unset the variable")
    else:
        yield from timeouts(environ, suspect_after_s)
    yield from contract(environ, job)
    try:
        present = network.interfaces()
    except OSError as error:
        yield warn("interfaces", f"cannot be listed: {error.strerror}", "")
        return
    hostname = socket.gethostname()
    yield _meeting_point(job, present, hostname)
    gloo = network.gloo_choice(environ, present, hostname, in_time)
    yield network.gloo(gloo, job, present, used=not gpus)
    nccl = network.nccl_choice(network.nccl_environment(environ, str(Path.home())), present)
    yield network.nccl(nccl, job, present, used=gpus > 0)


def _meeting_point(job: Job, present: Sequence[Interface], hostname: str) -> Finding:
    """Check the address where the ranks, or their launchers, would meet."""
    if job.host and job.port is not None:
        where = rendezvous.look_up(job.host, job.port, present, in_time, hostname)
        return rendezvous.resolution(where, job) or rendezvous.reachable(
            where, job, rendezvous.connect, listener
        )
    if job.nodes == 1 and not job.host:
        return ok(rendezvous.CHECK, "one node: the launcher chooses an address")
    if job.several_nodes:
        return fail(
            rendezvous.CHECK,
            f"{job.nodes} nodes, and no address where they meet",
            "name the first node: --rdzv-endpoint or --master-addr, or MASTER_ADDR",
        )
    return ok(rendezvous.CHECK, "no MASTER_ADDR and MASTER_PORT: the launcher sets them")


def in_time(name: str, resolver: Resolve = network.resolve) -> Sequence[str]:
    """Return the addresses of a name, without waiting for a dead name server. Raises OSError."""
    try:
        return asyncio.run(in_thread(partial(resolver, name), timing.DOCTOR_RESOLVE_S))
    except TimeoutError:
        raise TimeoutError(f"no answer within {timing.DOCTOR_RESOLVE_S:g} s") from None


def gpus_seen(directory: str = "/dev") -> int:
    """Return the number of NVIDIA GPUs of this container or machine."""
    try:
        return sum(bool(_DEVICE.fullmatch(path.name)) for path in Path(directory).iterdir())
    except OSError:
        return 0
