"""The subcommands of ``hangwatch``, except the one that watches a job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import NoReturn

from hangwatch.errors import UsageError

MALFORMED = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(RecursionError, OverflowError),
)
"""Raised by reading values from JSON that someone else wrote or damaged."""


class Arguments(argparse.ArgumentParser):
    """An argparse parser that raises UsageError instead of exiting."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"hangwatch {command}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message and a pointer to the help."""
        raise UsageError(f"{message}; see {self.prog} --help")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines at once: a reader of a pipe may wait for them."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
