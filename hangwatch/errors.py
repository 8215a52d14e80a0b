"""Errors of hangwatch. Each message tells the operator what to do."""

from __future__ import annotations

UNUSABLE = 78
"""Exit code of a watchdog that said why it can never work here (EX_CONFIG of sysexits.h)."""


class HangwatchError(Exception):
    """Root of all errors that hangwatch raises on purpose."""


class UsageError(HangwatchError):
    """The command line or an environment variable makes no sense."""


class PageError(HangwatchError):
    """A rank page cannot be read; the message names what is wrong with it."""


class FlightError(HangwatchError):
    """A Flight Recorder dump cannot be read."""


class ReportError(HangwatchError):
    """A stored report cannot be read or written."""


class EvidenceError(HangwatchError):
    """A piece of evidence cannot be had; the message says why and what would help."""
