"""Fixtures of several modules: the news of hangwatch, and what they said."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hangwatch.console import News

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def said(tmp_path: Path) -> Path:
    return tmp_path / "stderr"


@pytest.fixture
def news(said: Path) -> News:
    return News(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC))
