"""What all tests share: an environment that is not under watch itself."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No HANGWATCH_* variable of whoever runs the tests reaches them."""
    for name in list(os.environ):
        if name.startswith("HANGWATCH"):
            monkeypatch.delenv(name)
