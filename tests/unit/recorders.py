"""The two recorders, which most tests of one of them are told of alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fake_torch import Group, Work
from recording import WHY_PYTHON, Recording

from hangwatch import _native
from hangwatch.agent.record.python_recorder import PythonRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["native", "python"])
def recorder(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each of the two in turn, without a page yet."""
    if request.param == "python":
        yield PythonRecorder(WHY_PYTHON)
        return
    yield _native
    _native.unwrap_methods()
    _native.set_prefixes([], [])
    _native.close_page()


@pytest.fixture
def recording(recorder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Its page, with the classes of the fake of torch wrapped."""
    for kind in (Group, Work):
        for name, method in vars(kind).copy().items():
            if callable(method):
                monkeypatch.setattr(kind, name, method)
    recording = Recording(recorder, tmp_path / "r2-5-4711.page")
    recording.wrap()
    return recording
