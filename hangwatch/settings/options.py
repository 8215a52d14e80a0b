"""The options of the command line, each of them also a HANGWATCH_* variable.

Read without argparse, whose import alone takes a good part of the start of a command.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hangwatch.errors import UsageError
from hangwatch.settings.config import PREFIX, Config, OnHang, Stacks, parse_seconds


@dataclass(frozen=True, slots=True)
class Option:
    """An option that takes a value, or a switch where ``metavar`` is empty."""

    flag: str
    metavar: str
    field: str
    """Of Config."""
    read: Callable[[str, str], Any]
    """Makes the value from its text; the second argument names its source in errors."""
    help: str

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line: settings by field of Config, and the words after the options."""

    values: dict[str, Any]
    words: list[str]
    wants: str = ""
    """``help`` or ``version`` if that was asked for."""


def _text(text: str, name: str) -> str:
    if not text:
        raise UsageError(f"{name}: an empty value makes no sense")
    return text


def _interval(text: str, name: str) -> float:
    value = None if text == "auto" else parse_seconds(text, name)
    if value is None:
        raise UsageError(f"{name} {text}: use a number of seconds")
    return value


def _switch(text: str, name: str) -> bool:
    if text not in {"0", "1"}:
        raise UsageError(f"{name} {text}: use 0 or 1")
    return text == "1"


def _switch_off(text: str, name: str) -> bool:
    return not _switch(text, name)


def _one_of(kind: type[StrEnum]) -> Callable[[str, str], StrEnum]:
    def read(text: str, name: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise UsageError(f"{name} {text}: use one of {', '.join(kind)}") from None

    return read


OPTIONS = (
    Option("--report-dir", "DIR", "report_dir", _text, "where reports go (hangwatch-reports)"),
    Option("--run-id", "ID", "run_id", _text, "name of this run (date, time and pid)"),
    Option(
        "--suspect-after",
        "S",
        "suspect_after_s",
        parse_seconds,
        "seconds of waiting until it is called slow (auto: learnt from the job)",
    ),
    Option(
        "--hang-after",
        "S",
        "hang_after_s",
        parse_seconds,
        "seconds of waiting until it is called a hang (auto); what can be proved is\n"
        "called so at once",
    ),
    Option(
        "--on-hang",
        "ACTION",
        "on_hang",
        _one_of(OnHang),
        "report, or abort: end the hung ranks; exit code 75 if the job ends of it",
    ),
    Option("--hook", "CMD", "hook", _text, "command to run at a verdict, with the report's path"),
    Option("--interval", "S", "interval_s", _interval, "seconds between two looks (0.5)"),
    Option(
        "--stacks",
        "HOW",
        "stacks",
        _one_of(Stacks),
        "python, native (C and C++ frames too, slower), or off",
    ),
    Option(
        "--metrics-addr",
        "ADDR",
        "metrics_addr",
        _text,
        "HOST:PORT to serve Prometheus metrics at (127.0.0.1:9853; a free port\n"
        "where it is taken), or off",
    ),
    Option("--no-gpu", "", "gpu", _switch_off, "ask the GPUs for no figures"),
    Option("--verbose", "", "verbose", _switch, "say more; also -v"),
)
_BY_FLAG = {option.flag: option for option in OPTIONS} | {"-v": OPTIONS[-1]}
_ASKED = {"-h": "help", "--help": "help", "--version": "version"}


def parse(argv: Sequence[str]) -> Parsed:
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
        values[option.field] = option.read(text, flag)
    return Parsed(values, rest)


def settings(values: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
    """Make the settings from flags, then from HANGWATCH_* variables. Raises UsageError.

    A variable that is set but empty counts as not set.
    """
    merged = {
        option.field: option.read(environ[option.variable], option.variable)
        for option in OPTIONS
        if option.field not in values and environ.get(option.variable)
    }
    return Config(**{**merged, **values})


def _meant(flag: str) -> str:
    close = difflib.get_close_matches(flag, _BY_FLAG, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def describe() -> str:
    """Return the options as --help shows them."""
    lines = []
    for option in OPTIONS:
        first, *more = option.help.splitlines()
        lines.append(f"  {f'{option.flag} {option.metavar}':22}{first}")
        lines.extend(f"{'':24}{line}" for line in more)
    return "\n".join(lines)
