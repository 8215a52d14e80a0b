"""Reads PyTorch Flight Recorder dumps."""

from __future__ import annotations

from hangwatch.flight.merge import rank_ops
from hangwatch.flight.recorder import parse_json

__all__ = ["parse_json", "rank_ops"]
