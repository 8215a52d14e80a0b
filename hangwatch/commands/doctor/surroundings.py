"""Whether hangwatch itself works on this machine, and how well."""

from __future__ import annotations

import os
import platform
import queue
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import hangwatch
from hangwatch.agent.environment import sitecustomize_directory
from hangwatch.errors import EvidenceError, UsageError
from hangwatch.evidence.gpu.nvml import NO_DRIVER
from hangwatch.evidence.gpu.reader import examine_gpus
from hangwatch.evidence.stacks import find_py_spy, parse, refusal
from hangwatch.model import native
from hangwatch.preflight import limits, network, rendezvous
from hangwatch.preflight.contract import contract
from hangwatch.preflight.finding import Finding, fail, ok, warn
from hangwatch.preflight.job import Job, devices
from hangwatch.preflight.limits import ptrace
from hangwatch.preflight.network import Interface, Resolve, interfaces
from hangwatch.preflight.timeouts import timeouts
from hangwatch.run import rundir
from hangwatch.settings import options

_NO_LIBRARY = "cannot open shared object file"
"""What dlopen says of a library that is not there."""
OLDEST_TORCH = (2, 4)
PY_SPY_S = 20.0


def installation(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at everything, one finding after the other."""
    where = Path(hangwatch.__file__).parent
    yield ok("hangwatch", f"{hangwatch.__version__} in {where}")
    yield ok("python", f"{platform.python_version()} ({sys.executable})")
    for name, look, remedy in (
        ("torch", _torch, "pip install torch, or run the doctor in the job's environment"),
        ("injection", _injection, "pip install hangwatch anew"),
        ("recorder", _recorder, "install hangwatch where there is a C++ compiler"),
        ("beacons", _beacons, ""),
        ("stacks", _stacks, ""),
        ("gpus", examine_gpus, ""),
    ):
        yield _finding(name, look, remedy)
    yield _pages(environ)


def _finding(name: str, look: Callable[[], str], remedy: str) -> Finding:
    """What look returns is good; what it raises is worth a note."""
    try:
        return ok(name, look())
    except (EvidenceError, OSError, ImportError, LookupError) as error:
        return warn(name, str(error), remedy)


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


def _injection() -> str:
    return f"by {sitecustomize_directory()}"


def _recorder() -> str:
    try:
        module = native.load()
    except ImportError as error:
        raise ImportError(f"Python: slower, and its pages need the GIL ({error})") from None
    return f"native, room for {module.MAX_GROUPS} groups a rank"


def _beacons() -> str:
    """Whether GPUs could tell how far their streams have come."""
    try:
        module = native.load()
    except ImportError:
        raise LookupError("none: the native recorder writes them") from None
    devices, why = module.examine_beacons()
    if _NO_LIBRARY in why:
        return f"none: {NO_DRIVER}"
    if why:
        raise LookupError(f"none, how far a GPU has come is not known: {why}")
    return f"{devices} GPU{'s' if devices > 1 else ''} can tell how far streams have come"


def _stacks() -> str:
    """Take the stack of a process that is started for it, as the watchdog does of a rank."""
    binary = find_py_spy()
    if binary is None:
        raise EvidenceError("py-spy was not found: pip install py-spy")
    sleeper = subprocess.Popen(
        [sys.executable, "-Sc", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        if sleeper.stdout:
            sleeper.stdout.readline()
        command = [binary, "dump", "--json", "--pid", str(sleeper.pid)]
        done = subprocess.run(  # noqa: S603 (py-spy, as the watchdog starts it)
            command, capture_output=True, timeout=PY_SPY_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise EvidenceError(f"py-spy did not answer within {PY_SPY_S:g} s") from None
    finally:
        sleeper.kill()
        sleeper.communicate()
    if done.returncode:
        raise refusal(done.stderr.decode("utf-8", "replace"))
    parse(done.stdout, sleeper.pid)
    return f"{binary} may read other processes"


def _pages(environ: Mapping[str, str]) -> Finding:
    """Where pages go: the first base with room."""
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
