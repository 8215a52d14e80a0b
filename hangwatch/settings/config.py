"""The settings of a run: each an option of the command line, and a HANGWATCH_* variable.

The options are read without argparse, whose import alone takes a good part of the start of a
command.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from hangwatch.errors import UsageError

PREFIX = "HANGWATCH_"
MAX_PORT = 65535
_ADDRESS = re.compile(
    r"(?:(?P<host>[A-Za-z0-9._-]+)|\[(?P<ip6>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?)\])"
    r":(?P<port>[0-9]{1,5})"
)
"""A name or an IPv4 address, or an IPv6 address in brackets; it is resolved later."""


class OnHang(StrEnum):
    """The action at a verdict of HANG."""

    REPORT = "report"
    ABORT = "abort"


class Stacks(StrEnum):
    """The frames that py-spy takes."""

    PYTHON = "python"
    NATIVE = "native"
    OFF = "off"


def _option(default: Any, metavar: str, text: str) -> Any:
    """Describe a field of Config that is an option of the command line.

    metavar: for its value in ``--help``, empty for a switch. text: its help.
    """
    return field(default=default, metadata={"metavar": metavar, "help": text})


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one run. Durations in seconds; None means ``auto``.

    Raises UsageError for values that make no sense, alone or together.
    """

    report_dir: str = _option("hangwatch-reports", "DIR", "where reports go (hangwatch-reports)")
    run_id: str = _option("", "ID", "name of this run (date, time and pid)")
    suspect_after_s: float | None = _option(
        None, "S", "seconds of waiting until it is called slow (auto: learnt from the job)"
    )
    hang_after_s: float | None = _option(
        None,
        "S",
        "seconds of waiting until it is called a hang (auto); what can be proved is\n"
        "called so at once",
    )
    on_hang: OnHang = _option(  # noqa: RUF009 (it makes a field)
        OnHang.REPORT,
        "ACTION",
        "report, or abort: end the hung ranks; exit code 75 if the job ends of it",
    )
    hook: str = _option("", "CMD", "command to run at a verdict, with the report's path")
    interval_s: float = _option(0.5, "S", "seconds between two looks (0.5)")
    stacks: Stacks = _option(  # noqa: RUF009 (as above)
        Stacks.PYTHON, "HOW", "python, native (C and C++ frames too, slower), or off"
    )
    metrics_addr: str = _option(
        "127.0.0.1:9853",
        "ADDR",
        "HOST:PORT to serve Prometheus metrics at (127.0.0.1:9853; a free port\n"
        "where it is taken), or off",
    )
    gpu: bool = _option(default=True, metavar="", text="ask the GPUs for no figures")
    stragglers: bool = _option(
        default=True, metavar="", text="do not look for ranks that make the job slow"
    )
    straggler_window_s: float = _option(
        60.0, "S", "seconds after which such a rank is named, at the soonest (60)"
    )
    verbose: bool = _option(default=False, metavar="", text="say more; also -v")

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0.05 <= self.interval_s <= 60:  # noqa: PLR2004 (the bounds are named in the message)
            raise UsageError(f"--interval {self.interval_s:g}: use 0.05 to 60 seconds")
        if not 10 <= self.straggler_window_s <= 3600:  # noqa: PLR2004 (as above)
            raise UsageError(
                f"--straggler-window {self.straggler_window_s:g}: use 10 to 3600 seconds"
            )
        for flag, value in (
            ("--suspect-after", self.suspect_after_s),
            ("--hang-after", self.hang_after_s),
        ):
            if value is not None and value <= 0:
                raise UsageError(f"{flag} {value:g}: use a number of seconds above 0, or auto")
        if (
            self.suspect_after_s is not None
            and self.hang_after_s is not None
            and self.hang_after_s < self.suspect_after_s
        ):
            raise UsageError(
                f"--hang-after {self.hang_after_s:g} is less than --suspect-after "
                f"{self.suspect_after_s:g}: a job is suspected before it is called hung"
            )
        if self.run_id and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", self.run_id):
            raise UsageError(
                f"--run-id {self.run_id!r}: use letters, digits, '.', '_' and '-', at most 128"
            )
        parse_address(self.metrics_addr)
        if self.hook:
            parse_hook(self.hook)


def parse_seconds(text: str, flag: str) -> float | None:
    """Read a number of seconds, None for ``auto``. Raises UsageError."""
    if text == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: use a number of seconds, or auto") from None
    if not math.isfinite(value):
        raise UsageError(f"{flag} {text}: use a finite number of seconds, or auto")
    return value


def parse_address(text: str) -> tuple[str, int] | None:
    """Return host and port to listen at, None for ``off``. Raises UsageError."""
    if text == "off":
        return None
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > MAX_PORT:
        raise UsageError(
            f"--metrics-addr {text!r}: use HOST:PORT such as 127.0.0.1:9853 or [::1]:9853, or off"
        )
    return found["host"] or found["ip6"], int(found["port"])


def parse_hook(text: str) -> list[str]:
    """Split the command of a hook into words. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        reason = str(error)[:1].lower() + str(error)[1:]
        raise UsageError(
            f"--hook {text}: it cannot be parsed ({reason}): quote it as for a shell"
        ) from None
    if not words or not words[0]:
        raise UsageError(f"--hook {text!r}: name the command to run at a verdict")
    return words


def hook_trouble(text: str, environ: Mapping[str, str]) -> str:
    """Say why a hook could not be run now; empty if it could."""
    program = parse_hook(text)[0] if text else ""
    if not program or shutil.which(program, path=environ.get("PATH")):
        return ""
    where = "not executable" if Path(program).exists() else "no such program"
    return f"--hook {text}: {where} ({program}); the job runs without the hook"


def enabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Return False if HANGWATCH=0 turns hangwatch off."""
    return environ.get("HANGWATCH", "1") != "0"


def new_run_id() -> str:
    """Make a run id that sorts by time: UTC date, time and the pid."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class Option:
    """An option that takes a value, or a switch if ``metavar`` is empty."""

    setting: str
    """The field of Config."""
    default: Any
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        """The flag; a switch that is on has one to turn it off."""
        no = "no-" if self.default is True else ""
        return f"--{no}{self.setting.removesuffix('_s').replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    def read(self, text: str, source: str) -> Any:
        """Make the value from its text; source names it in errors. Raises UsageError."""
        match self.default:
            case bool():
                if text not in {"0", "1"}:
                    raise UsageError(f"{source} {text}: use 0 or 1")
                return (text == "1") != self.default
            case StrEnum():
                choices = type(self.default)
                if text not in list(choices):
                    raise UsageError(f"{source} {text}: use one of {', '.join(choices)}")
                return choices(text)
            case str():
                if not text:
                    raise UsageError(f"{source}: the value is empty")
                return text
        value = parse_seconds(text, source)
        if value is None and self.default is not None:
            raise UsageError(f"{source} {text}: use a number of seconds")
        return value


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line: values by field of Config, and the words after the options."""

    values: dict[str, Any]
    words: list[str]
    wants: str = ""
    """``help`` or ``version`` if that was asked for."""


OPTIONS = tuple(Option(f.name, f.default, **f.metadata) for f in fields(Config))
_BY_FLAG = {option.flag: option for option in OPTIONS} | {"-v": OPTIONS[-1]}
_ASKED = {"-h": "help", "--help": "help", "--version": "version"}


def parse_options(argv: Sequence[str]) -> Parsed:
    """Read the options before the first word that is none. Raises UsageError."""
    values: dict[str, Any] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word in _ASKED:
            return Parsed(values, rest, _ASKED[word])
        flag, given, text = word.partition("=")
        option = _BY_FLAG.get(flag)
        if option is None:
            raise UsageError(f"unknown option {flag}{_meant(flag)}; see hangwatch --help")
        if not option.metavar:
            text = text if given else "1"
        elif not given:
            if not rest:
                raise UsageError(f"{flag} needs a value: {flag} {option.metavar}")
            text = rest.pop(0)
        values[option.setting] = option.read(text, flag)
    return Parsed(values, rest)


def read_config(values: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
    """Make the settings from flags, then from HANGWATCH_* variables. Raises UsageError.

    A variable that is set but empty counts as not set.
    """
    merged = {
        option.setting: option.read(environ[option.variable], option.variable)
        for option in OPTIONS
        if option.setting not in values and environ.get(option.variable)
    }
    return Config(**{**merged, **values})


def _meant(flag: str) -> str:
    import difflib  # noqa: PLC0415 (needed for a mistake alone)

    close = difflib.get_close_matches(flag, _BY_FLAG, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def describe_options() -> str:
    """Return the options as --help shows them."""
    lines = []
    for option in OPTIONS:
        first, *more = option.help.splitlines()
        lines.append(f"  {f'{option.flag} {option.metavar}':22}{first}")
        lines.extend(f"{'':24}{line}" for line in more)
    return "\n".join(lines)
