"""The subcommands of ``hangwatch``, but for the one that watches a job, and their arguments."""

from __future__ import annotations

import argparse
from typing import NoReturn

from hangwatch.errors import UsageError


class Arguments(argparse.ArgumentParser):
    """An argparse parser that raises UsageError where that one would exit."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"hangwatch {command}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where help is. Raises UsageError."""
        raise UsageError(f"{message}; see {self.prog} --help")
