"""Judges a job: snapshots in, a verdict out. No I/O, no clock, no logging."""

from __future__ import annotations

from hangwatch.diagnosis.desync import find_desync
from hangwatch.diagnosis.verdict import diagnose

__all__ = ["diagnose", "find_desync"]
