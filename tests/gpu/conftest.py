"""Tests of this directory need a real GPU; without one they are skipped, and counted so."""

from __future__ import annotations

import ctypes

import pytest


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _has_driver():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA driver on this machine"))
