"""The job that a launcher's command line and the environment describe, and where its script is.

The options that take no value are those of torchrun 2.13 (torch/distributed/run.py),
Accelerate 1.15 (commands/launch.py) and DeepSpeed 0.19 (launcher/runner.py); all other
options take one. If a version has another switch, the word after it is taken for
its value, unless that is a Python file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from hangwatch.run.launchers import LAUNCHER_MODULES, LAUNCHERS
from hangwatch.safety import untrusted

RENDEZVOUS_PORT = 29400
"""Of torchrun's c10d rendezvous if the endpoint names none (torch/distributed/elastic)."""
MASTER_PORT = 29500
"""Of torchrun's static rendezvous and of Accelerate and DeepSpeed."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    """A launcher and its options."""

    name: str
    nodes: str
    node_rank: str
    address: str
    port: str
    switches: frozenset[str]
    """Options that take no value."""


_TORCHRUN = _Launcher(
    "torchrun",
    *("--nnodes", "--node-rank", "--master-addr", "--master-port"),
    frozenset(
        {
            *("-m", "--module", "--no-python", "--run-path", "--standalone"),
            *("--virtual-local-rank", "--use-env"),  # the latter of torch.distributed.launch
        }
    ),
)
_ACCELERATE = _Launcher(
    "accelerate",
    *("--num-machines", "--machine-rank", "--main-process-ip", "--main-process-port"),
    frozenset(
        {
            *("-m", "-q", "--cpu", "--debug", "--downcast-bf16", "--dynamo-use-dynamic"),
            *("--dynamo-use-fullgraph", "--dynamo-use-regional-compilation"),
            *("--enable-cpu-affinity", "--fp8-use-autocast-during-eval", "--module"),
            *("--multi-gpu", "--no-python", "--no-tpu-cluster", "--quiet", "--same-network"),
            *("--tpu", "--tpu-cluster", "--tpu-use-sudo", "--use-deepspeed", "--use-fsdp"),
            *("--use-megatron-lm", "--use-parallelism-config"),
        }
    ),
)
_DEEPSPEED = _Launcher(
    "deepspeed",
    *("--num-nodes", "--node-rank", "--master-addr", "--master-port"),
    frozenset(
        {
            *("-q", "--bind-cores-to-rank", "--elastic-training", "--force-multi", "--module"),
            *("--no-local-rank", "--no-python", "--no-ssh", "--no-ssh-check", "--quiet"),
            "--save-pid",
        }
    ),
)
_BY_NAME = {launcher.name: launcher for launcher in (_TORCHRUN, _ACCELERATE, _DEEPSPEED)}
_PYTHON = frozenset("bBdEhiIOPqsSuvVx?")
"""Letters of python's options without a value; -W and -X take one, -c and -m end them."""
_IS_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_HELP = frozenset({"-h", "--help"})
_DIGITS = 18
"""A number of more has nothing to do with a job."""
_ENDPOINT = re.compile(r"\[(?P<ip6>[^]]+)\](?::(?P<port6>\d+))?|(?P<host>[^:]+)(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class Line:
    """The parts of a launcher's command line."""

    launcher: str
    """``torchrun``, ``accelerate``, ``deepspeed``, ``python``, or empty: not known."""
    before: tuple[str, ...]
    """All words up to the script, except for ``-m``, ``--module`` and ``--no-python``."""
    script: tuple[str, ...]
    """The program, or the module after its -m, and its arguments."""
    options: dict[str, str] = field(default_factory=dict)
    """Of the launcher, with dashes; the value of a switch is empty."""
    runs_programs: bool = False
    """The script is a program (--no-python), not a Python file."""

    def with_script(self, program: str, *arguments: str) -> list[str]:
        """Return the line with another Python file in the place of the script."""
        words = list(self.before)
        if self.runs_programs and _IS_PYTHON.fullmatch(PurePath(self.script[0]).name):
            words += ["--no_python", self.script[0]]  # may be another one than the launcher's
        return [*words, program, *arguments]


def parse_command(command: Sequence[str]) -> Line | None:
    """Return the parts of a line; None if there is no Python script in it."""
    for at, word in enumerate(command):
        name = PurePath(word).name
        if name in LAUNCHERS:
            return _launched_line(command, at + 1, _BY_NAME[LAUNCHERS[name]])
        if name == "accelerate" and command[at + 1 : at + 2] == ["launch"]:
            return _launched_line(command, at + 2, _ACCELERATE)
        if _IS_PYTHON.fullmatch(name):
            return _python_line(command, at + 1)
    # A launcher that is not known: the first Python file is the script.
    script = next((at for at, word in enumerate(command) if word.endswith(".py")), None)
    return None if script is None else Line("", tuple(command[:script]), tuple(command[script:]))


def _launched_line(command: Sequence[str], at: int, launcher: _Launcher) -> Line | None:
    """Read the options of a launcher, which begin there, and the script behind them."""
    options: dict[str, str] = {}
    before = list(command[:at])
    runs_programs = False
    while at < len(command) and command[at].startswith("-"):
        word = command[at]
        at += 1
        if word == "--":
            break
        flag, given, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag in ("-m", "--module") and flag in launcher.switches:
            continue
        if flag == "--no-python":
            runs_programs = True
            continue
        before.append(word)
        short = not flag.startswith("--") and len(flag) > 2  # noqa: PLR2004 (-r3: with its value)
        if not given and not short and flag not in launcher.switches | _HELP:
            following = command[at : at + 1]
            if following and not following[0].endswith(".py"):
                value = following[0]
                before.append(value)
                at += 1
        options[flag] = value
    script = tuple(command[at:])
    return Line(launcher.name, tuple(before), script, options, runs_programs) if script else None


def _python_line(command: Sequence[str], at: int) -> Line | None:
    """Read ``[OPTIONS] script.py`` or ``[OPTIONS] -m module``, which begin there."""
    while at < len(command) and command[at].startswith("-") and command[at] != "-":
        word = command[at]
        if word in ("-W", "-X"):
            at += 2
            continue
        if word.startswith(("-W", "-X", "--")) or set(word[1:]) <= _PYTHON:
            at += 1
            continue
        letters, _, module = word[1:].partition("m")
        if "m" not in word or not set(letters) <= _PYTHON:
            return None  # -c: no file, or an option that is not known
        kept = [f"-{letters}"] if letters else []
        named = [module] if module else list(command[at + 1 : at + 2])
        rest = at + (1 if module else 2)
        if named and named[0] in LAUNCHER_MODULES:
            return _launched_line(command, rest, _BY_NAME[LAUNCHER_MODULES[named[0]]])
        cli = named == ["accelerate.commands.accelerate_cli"]
        if cli and command[rest : rest + 1] == ["launch"]:
            return _launched_line(command, rest + 1, _ACCELERATE)
        before = (*command[:at], *kept)
        return Line("python", before, (*named, *command[rest:])) if named else None
    script = tuple(command[at:])
    return Line("python", tuple(command[:at]), script) if script else None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is meant to be; None if nothing says so."""

    launcher: str = ""
    """As Line.launcher."""
    nodes: int | None = None
    """At least so many."""
    node_rank: int | None = None
    host: str = ""
    """The address where the ranks, or the launchers, meet; empty if none is given."""
    port: int | None = None
    local_ranks: int | None = None

    @property
    def several_nodes(self) -> bool:
        """True if it is known to use several nodes."""
        return self.nodes is not None and self.nodes > 1

    @property
    def launched(self) -> bool:
        """True if a launcher gives the ranks their variables."""
        return self.launcher in _BY_NAME


def job(environ: Mapping[str, str], command: Sequence[str] = ()) -> Job:
    """Return the job of an environment and a command line; the line wins."""
    line = parse_command(command) if command else None
    if line is not None and line.launcher in _BY_NAME:
        return _launched_job(line, environ)
    world, local = number(environ, "WORLD_SIZE"), number(environ, "LOCAL_WORLD_SIZE")
    nodes = None
    if world is not None and local:
        nodes = -(-world // local)
    elif world == 1:
        nodes = 1
    return Job(
        launcher=line.launcher if line else "",
        nodes=nodes,
        node_rank=number(environ, "GROUP_RANK"),
        host=environ.get("MASTER_ADDR", ""),
        port=number(environ, "MASTER_PORT"),
        local_ranks=local,
    )


def number(values: Mapping[str, str], name: str, otherwise: str = "") -> int | None:
    """Return a variable or an option as a number, None if it is none."""
    return untrusted.parse_number(values.get(name, otherwise), _DIGITS)


def endpoint(text: str, otherwise: int) -> tuple[str, int]:
    """Return the host and port of ``host[:port]``, ``[ip6][:port]`` or an IPv6 address alone."""
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        return text, otherwise
    port = match["port"] or match["port6"]
    return match["host"] or match["ip6"], int(port) if port else otherwise


def _launched_job(line: Line, environ: Mapping[str, str]) -> Job:
    launcher = _BY_NAME[line.launcher]
    options = line.options
    if launcher is _TORCHRUN:
        options = {**_torchrun_variables(environ), **options}
        if "--standalone" in options:
            ranks = number(options, "--nproc-per-node", "1")
            return Job(line.launcher, 1, 0, local_ranks=ranks)
    host = ""
    port: int | None = None
    if given := options.get("--rdzv-endpoint"):
        static = options.get("--rdzv-backend", "static") == "static"
        host, port = endpoint(given, MASTER_PORT if static else RENDEZVOUS_PORT)
    elif given := options.get(launcher.address):
        host, port = given, number(options, launcher.port) or MASTER_PORT
    # Without the option a file of Accelerate's or DeepSpeed's may say how many.
    nodes = options.get(launcher.nodes) or ("1" if launcher is _TORCHRUN else "")
    return Job(
        line.launcher,
        number({"nodes": nodes.partition(":")[0]}, "nodes"),
        number(options, launcher.node_rank),
        host,
        port,
        _local_ranks(launcher, options),
    )


def _torchrun_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options of torchrun set by variables: PET_RDZV_ENDPOINT for --rdzv-endpoint."""
    options = {
        f"--{name.removeprefix('PET_').lower().replace('_', '-')}": value
        for name, value in environ.items()
        if name.startswith("PET_")
    }
    if options.get("--standalone", "1") != "1":
        del options["--standalone"]
    return options


def _local_ranks(launcher: _Launcher, options: Mapping[str, str]) -> int | None:
    if launcher is _TORCHRUN:
        return number(options, "--nproc-per-node", "1")
    if launcher is _DEEPSPEED:
        return number(options, "--num-gpus") or number(options, "--num-accelerators")
    total, machines = number(options, "--num-processes"), number(options, "--num-machines", "1")
    return total // machines if total and machines else None
