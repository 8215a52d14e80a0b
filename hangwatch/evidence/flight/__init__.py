"""Reads PyTorch Flight Recorder dumps."""

from __future__ import annotations

from hangwatch.evidence.flight.merge import rank_ops
from hangwatch.evidence.flight.offline import job_snapshot, newest
from hangwatch.evidence.flight.recorder import parse_dump, parse_json

__all__ = ["job_snapshot", "newest", "parse_dump", "parse_json", "rank_ops"]
