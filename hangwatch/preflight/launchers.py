"""Reads the command line of a launcher: what it says of the job, and where the script is.

The options that take no value are those of torchrun 2.13 (torch/distributed/run.py),
Accelerate 1.15 (commands/launch.py) and DeepSpeed 0.19 (launcher/runner.py); all other
options take one. Where a version knows another switch, the word after it is taken for
its value, unless that is a Python file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

_ANY = frozenset({"-h", "--help"})
_TORCHRUN = frozenset(
    {"-m", "--module", "--no-python", "--run-path", "--standalone", "--virtual-local-rank"}
)
_LAUNCH = _TORCHRUN | {"--use-env"}
_ACCELERATE = frozenset(
    {
        "-m",
        "-q",
        "--cpu",
        "--debug",
        "--downcast-bf16",
        "--dynamo-use-dynamic",
        "--dynamo-use-fullgraph",
        "--dynamo-use-regional-compilation",
        "--enable-cpu-affinity",
        "--fp8-use-autocast-during-eval",
        "--module",
        "--multi-gpu",
        "--no-python",
        "--no-tpu-cluster",
        "--quiet",
        "--same-network",
        "--tpu",
        "--tpu-cluster",
        "--tpu-use-sudo",
        "--use-deepspeed",
        "--use-fsdp",
        "--use-megatron-lm",
        "--use-parallelism-config",
    }
)
_DEEPSPEED = frozenset(
    {
        "-q",
        "--bind-cores-to-rank",
        "--elastic-training",
        "--force-multi",
        "--module",
        "--no-local-rank",
        "--no-python",
        "--no-ssh",
        "--no-ssh-check",
        "--quiet",
        "--save-pid",
    }
)
_PYTHON = frozenset("bBdEhiIOPqsSuvVx?")
"""Letters of python's options without a value; -W and -X take one, -c and -m end them."""
_MODULES = {
    "torch.distributed.run": ("torchrun", _TORCHRUN),
    "torch.distributed.launch": ("torchrun", _LAUNCH),
    "accelerate.commands.launch": ("accelerate", _ACCELERATE),
    "deepspeed.launcher.runner": ("deepspeed", _DEEPSPEED),
}
_PROGRAMS = {
    "torchrun": ("torchrun", _TORCHRUN),
    "accelerate-launch": ("accelerate", _ACCELERATE),
    "deepspeed": ("deepspeed", _DEEPSPEED),
    "deepspeed.pt": ("deepspeed", _DEEPSPEED),
}
_IS_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_AS_MODULE = ("-m", "--module")
_NO_PYTHON = ("--no-python",)


@dataclass(frozen=True, slots=True)
class Line:
    """A launcher's command line, taken apart."""

    launcher: str
    """``torchrun``, ``accelerate``, ``deepspeed``, ``python``, or empty: not known."""
    before: tuple[str, ...]
    """All words up to the script, but for those that say what sort of thing it is."""
    script: tuple[str, ...]
    """The program, or the module after its -m, and its arguments."""
    options: dict[str, str] = field(default_factory=dict)
    """Of the launcher, with dashes; the value of a switch is empty."""
    runs_programs: bool = False
    """The script is a program (--no-python), not a Python file."""

    def with_script(self, program: str, *arguments: str) -> list[str]:
        """The same line for a Python file of ours in the place of the script."""
        words = list(self.before)
        if self.runs_programs and _IS_PYTHON.fullmatch(PurePath(self.script[0]).name):
            words += ["--no_python", self.script[0]]  # may be another one than the launcher's
        return [*words, program, *arguments]


def read(command: Sequence[str]) -> Line | None:
    """Take a line apart; None where no Python script is in it."""
    for place, word in enumerate(command):
        name = PurePath(word).name
        if name in _PROGRAMS:
            return _launcher(command, place + 1, *_PROGRAMS[name])
        if name == "accelerate" and command[place + 1 : place + 2] == ["launch"]:
            return _launcher(command, place + 2, "accelerate", _ACCELERATE)
        if _IS_PYTHON.fullmatch(name):
            return _python(command, place)
    return _script_alone(command)


def _launcher(
    command: Sequence[str], place: int, launcher: str, switches: frozenset[str]
) -> Line | None:
    """The options of a launcher, and the script behind them."""
    options: dict[str, str] = {}
    before = list(command[:place])
    program = False
    while place < len(command) and command[place].startswith("-"):
        word = command[place]
        place += 1
        if word == "--":
            break
        flag, given, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag in _AS_MODULE and flag in switches:
            continue
        if flag in _NO_PYTHON:
            program = True
            continue
        before.append(word)
        short = not flag.startswith("--") and len(flag) > 2  # noqa: PLR2004 (-r3: with its value)
        if not given and not short and flag not in switches | _ANY:
            following = command[place : place + 1]
            if following and not following[0].endswith(".py"):
                value = following[0]
                before.append(value)
                place += 1
        options[flag] = value
    script = tuple(command[place:])
    return Line(launcher, tuple(before), script, options, program) if script else None


def _python(command: Sequence[str], place: int) -> Line | None:
    """``python [OPTIONS] script.py`` or ``python [OPTIONS] -m module``."""
    at = place + 1
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
        if named and named[0] in _MODULES:
            return _launcher(command, rest, *_MODULES[named[0]])
        if named == ["accelerate.commands.accelerate_cli"] and command[rest : rest + 1] == [
            "launch"
        ]:
            return _launcher(command, rest + 1, "accelerate", _ACCELERATE)
        before = (*command[:at], *kept)
        return Line("python", before, (*named, *command[rest:])) if named else None
    script = tuple(command[at:])
    return Line("python", tuple(command[:at]), script) if script else None


def _script_alone(command: Sequence[str]) -> Line | None:
    """A launcher that is not known: the first Python file is the script."""
    for place, word in enumerate(command):
        if word.endswith(".py"):
            return Line("", tuple(command[:place]), tuple(command[place:]))
    return None
