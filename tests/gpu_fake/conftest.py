"""The fake libraries, each built once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_nvml import FakeNvml, build

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("old-nvml"), old=True)


@pytest.fixture
def fake(library: Path, tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml.txt", library)
