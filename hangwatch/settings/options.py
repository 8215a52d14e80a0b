"""The options of the command line, each of them also a HANGWATCH_* variable.

Read without argparse, whose import alone takes a good part of the start of a command.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from hangwatch.errors import UsageError
from hangwatch.settings.config import PREFIX, Config, parse_seconds


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
        values[option.setting] = option.read(text, flag)
    return Parsed(values, rest)


def settings(values: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
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
