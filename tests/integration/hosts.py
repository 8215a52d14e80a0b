"""Several hosts on one machine, made of namespaces, that run a job under watch.

Each host has a network, a hostname, process ids and a /dev/shm of its own, and one cable to
a switch, which is a bridge in a network namespace of its own. Nothing of that has a name
outside, and all of it ends with its processes, which end with the one that started them
(prctl(2), PR_SET_PDEATHSIG): there is nothing to sweep up after a test that failed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import PROGRAMS, environment, read_reports
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PORT = 29400
_NETWORKS = {4: "10.77.0.{}/24", 6: "fd77::{}/64"}
_MORTAL = ("setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child=KILL", "--fork", "--net")
_SWITCH = "ip link add switch type bridge && ip link set switch up && echo up && read _"
_HOST = """
hostname "$1" && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && cd "$2" && echo up || exit 9
read -r command || exit 9
(eval "exec $command") </dev/null >stdout 2>stderr
echo $? >ended.part && mv ended.part ended
read -r _  # the host is there until it is switched off
"""
_STATES = ("SLOW", "HANG", "FAILED", "DESYNC")


def _apart(clock_ahead_s: int) -> list[str]:
    """Options of unshare for what a host has of its own beside its network."""
    clock = ["--time", f"--monotonic={clock_ahead_s}"] if clock_ahead_s else []
    return ["--uts", "--ipc", "--pid", "--mount-proc", *clock]


def _why_not() -> str:
    """Why this machine cannot have such hosts, empty if it can."""
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    missing = [tool for tool in ("ip", "unshare", "nsenter", "setpriv") if not shutil.which(tool)]
    if missing:
        return f"{', '.join(missing)}: not installed"
    script = "ip link add one type veth peer name two && ip link add hub type bridge"
    command = [*_MORTAL, *_apart(1), "sh", "-c", script]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    return tried.stderr.strip() if tried.returncode else ""


WHY_NOT = _why_not()
needs_hosts = pytest.mark.skipif(bool(WHY_NOT) and not os.environ.get("CI"), reason=WHY_NOT)
"""In CI such tests fail where they cannot run."""


@dataclass(slots=True)
class Host:
    """One machine. It is there until it is killed, also when its command has ended."""

    number: int
    address: str
    where: Path
    """The working directory of its command."""
    _process: subprocess.Popen[bytes]
    _init: int
    """Its process 1, as we know it."""
    _switch: int

    @property
    def name(self) -> str:
        """Its hostname."""
        return f"node-{self.number}"

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start its command, the only one that it ever has."""
        settings = [f"{key}={value}" for key, value in env.items()]
        assert self._process.stdin
        self._process.stdin.write(f"{shlex.join(['env', *settings, *command])}\n".encode())
        self._process.stdin.flush()

    def kill(self) -> None:
        """All its processes end at once, and nothing answers at its address any more."""
        self._process.kill()
        self._process.wait()

    def lose_power(self) -> None:
        """The same without a last word to anybody."""
        self.cut_off()
        self.kill()

    def cut_off(self) -> None:
        """Pull its cable."""
        self._cable("down")

    def reconnect(self) -> None:
        """Put its cable back."""
        self._cable("up")

    def process(self, part: str) -> int:
        """The pid of the first of its processes with this in its command line."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [pid for pid in _below(self._init) if part in _command_line(pid)]
            return bool(found)

        until(look, f"{part} on {self.name}")
        return found[0]

    def watchdog(self) -> int:
        """The pid of its watchdog."""
        return self.process("-m hangwatch.watchdog")

    def said(self) -> str:
        """What came to its standard error so far."""
        path = self.where / "stderr"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def report(self) -> dict[str, Any]:
        """The newest report that it has written, once there is one."""
        until(self.reports, f"a report on {self.name}")
        newest: dict[str, Any] = self.reports()[-1]
        return newest

    def verdicts(self, *states: str) -> list[str]:
        """The lines that announced a verdict so far (of these states)."""
        starts = tuple(f"hangwatch: {state}" for state in states or _STATES)
        return [line for line in self.said().splitlines() if line.startswith(starts)]

    def reports(self) -> list[dict[str, Any]]:
        """The reports that it has written so far."""
        return read_reports(self.where / "reports")

    def exit_code(self) -> int | None:
        """Of its command, None while that runs."""
        path = self.where / "ended"
        return int(path.read_text()) if path.exists() else None

    def _cable(self, state: str) -> None:
        _in_network(self._switch, "ip", "link", "set", f"cable{self.number}", state)


@contextmanager
def hosts(
    where: Path, count: int = 2, *, version: int = 4, ahead_s: int = 0
) -> Iterator[list[Host]]:
    """Hosts on one network, switched off at the end.

    version: of the internet protocol, the only one that they speak. ahead_s: by how
    much CLOCK_MONOTONIC of each host is ahead of that of the one before it.
    """
    if WHY_NOT:
        pytest.fail(WHY_NOT)
    with ExitStack() as stack:
        _, switch = stack.enter_context(_namespaces("sh", "-c", _SWITCH))
        made = []
        for number in range(count):
            directory = where / f"node-{number}"
            directory.mkdir()
            apart, script = _apart(number * ahead_s), ["sh", "-c", _HOST, "sh"]
            process, init = stack.enter_context(
                _namespaces(*apart, *script, directory.name, str(directory))
            )
            address = _NETWORKS[version].format(number + 1)
            _connect(switch, init, number, address)
            plain = address.partition("/")[0]
            made.append(Host(number, plain, directory, process, init, switch))
        try:
            yield made
        finally:
            for host in made:
                sys.stderr.write(f"--- {host.name}\n{host.said()}\n")


def launch(  # noqa: PLR0913 (how a job is started, by keyword)
    made: Sequence[Host],
    program: str,
    *arguments: str,
    options: Sequence[str] = (),
    static: bool = False,
    nproc: int = 2,
    env: Mapping[int, Mapping[str, str]] | None = None,
) -> None:
    """Start a job under watch: a torchrun on each host, whose first one has the store.

    options: of hangwatch. static: by --node-rank instead of a rendezvous. env: of
    some hosts, by number.
    """
    first = made[0].address
    endpoint = f"[{first}]:{_PORT}" if ":" in first else f"{first}:{_PORT}"
    for host in made:
        meeting = [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}",
            f"--rdzv-conf=is_host={int(host is made[0])}",
            f"--local-addr={host.address}",
        ]
        if static:
            meeting = [f"--node-rank={host.number}"]
            meeting += [f"--master-addr={first}", f"--master-port={_PORT}"]
        command = [sys.executable, "-m", "hangwatch", "--report-dir", "reports", *options]
        command += ["torchrun", f"--nnodes={len(made)}", f"--nproc-per-node={nproc}", *meeting]
        network = {"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}
        host.start(
            [*command, str(PROGRAMS / program), *arguments],
            {**network, **(env or {}).get(host.number, {})},
        )


def acquainted(made: Sequence[Host]) -> None:
    """Wait until the ranks run and the watchdogs (with -v) know each other."""
    for host in made:
        until(lambda host=host: "nodes know each other" in host.said(), host.name)  # type: ignore[misc]


def everywhere(made: Sequence[Host], state: str, count: int = 1) -> None:
    """Wait until every host has announced so many verdicts of a state."""
    for host in made:
        until(lambda host=host: len(host.verdicts(state)) >= count, f"{state} on {host.name}")  # type: ignore[misc]


def recovered(made: Sequence[Host]) -> None:
    """Wait until every host has said that the job recovered."""
    for host in made:
        until(lambda host=host: "the job recovered" in host.said(), host.name)  # type: ignore[misc]


def ahead(where: Path) -> dict[str, str]:
    """The environment of a host whose wall clock is an hour ahead."""
    library = where / "wall_clock.so"
    source = Path(__file__).parent / "native" / "wall_clock.cpp"
    command = ["g++", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)  # noqa: S603 (ours)
    return {"LD_PRELOAD": str(library)}


@contextmanager
def _namespaces(*command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command in namespaces of its own, once it is up, and the pid of its first process."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(  # noqa: S603 (our own command)
        [*_MORTAL, *command], stdin=pipe, stdout=pipe, env=environment({})
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"up\n", f"{command} did not come up"
        yield process, _children()[process.pid][0]
    finally:
        process.kill()
        process.wait()
        for end in (process.stdin, process.stdout):
            if end:
                with suppress(BrokenPipeError):
                    end.close()


def _connect(switch: int, host: int, number: int, address: str) -> None:
    """Lay a cable from a switch to a host."""
    cable = f"cable{number}"
    ends = [cable, "type", "veth", "peer", "name", "eth0", "netns", str(host)]
    _in_network(switch, "ip", "link", "add", *ends)
    _in_network(switch, "ip", "link", "set", cable, "master", "switch", "up")
    probing = ["nodad"] if ":" in address else []
    _in_network(host, "ip", "address", "add", address, "dev", "eth0", *probing)
    _in_network(host, "ip", "link", "set", "eth0", "up")


def _in_network(pid: int, *command: str) -> None:
    """Run a command in the network of a process."""
    subprocess.run(["nsenter", f"--target={pid}", "--net", *command], check=True)  # noqa: S603, S607 (ours)


def _below(pid: int) -> Iterator[int]:
    """The descendants of a process, parents before their children."""
    children = _children()
    found = list(children.get(pid, ()))
    for one in found:
        found.extend(children.get(one, ()))
        yield one


def _children() -> dict[int, list[int]]:
    """Every process to its children, in the order of their start."""
    found: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_bytes().rpartition(b")")[2].split()[1])
            found.setdefault(parent, []).append(int(path.parent.name))
    return {parent: sorted(pids) for parent, pids in found.items()}


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""
