"""What all tests share: an environment that is not under watch itself, and signals as usual."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["chosen", "late"]

# Nothing here depends on how fast the machine is, nor, but in make campaign, on chance.
settings.register_profile(
    "chance",
    parent=settings.default,
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fixed", parent=settings.get_profile("chance"), derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of whoever runs the tests changes what is watched, or how it is shown."""
    for name in list(os.environ):
        if name.startswith("HANGWATCH") or name in {"FORCE_COLOR", "NO_COLOR", "COLUMNS"}:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="session")
def _not_in_the_background() -> None:
    """What a test starts hears Ctrl-C, which a shell ignores for what it runs with ``&``."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
