"""What make test runs of the real jobs is there, and runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chosen
import pytest

ROOT = Path(chosen.__file__).parents[2]


def collected(*paths: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--color=no", "-m", "chosen"]
    return subprocess.run([*line, *paths], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 (our own Python)


def test_of_a_directory_each_file_and_each_test_that_is_chosen_is_there() -> None:
    assert collected("tests/gpu_fake").returncode == 0
    # Where another one was meant, nothing of it is missed.
    assert collected("tests/gpu_fake/test_gpu_job.py").returncode == 0


def test_a_file_in_which_nothing_is_collected_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*items: str) -> str:
        config: Any = SimpleNamespace(
            args=[str(chosen.TESTS / "gpu_fake")], option=SimpleNamespace(markexpr="chosen")
        )
        found: list[Any] = [
            SimpleNamespace(path=chosen.TESTS / file, nodeid=item, add_marker=list)
            for item in items
            for file in [item.partition("::")[0]]
        ]
        with pytest.raises(pytest.UsageError) as raised:
            chosen.pytest_collection_modifyitems(config, found)
        return str(raised.value)

    monkeypatch.setattr(chosen, "CHOSEN", {"gpu_fake/test_gpu_job.py": ("test_a",)})
    assert "['gpu_fake/test_gpu_job.py', 'gpu_fake/test_gpu_job.py::test_a']" in missing()
    other = missing("gpu_fake/test_gpu_job.py::test_b")
    assert "['gpu_fake/test_gpu_job.py::test_a']" in other


@pytest.mark.parametrize(
    ("markexpr", "on_ci", "outcome"),
    [("chosen and quiet", True, "failed"), ("chosen", False, "skipped"), ("", True, "skipped")],
)
def test_nothing_that_is_chosen_is_skipped_in_continuous_integration(
    monkeypatch: pytest.MonkeyPatch, markexpr: str, outcome: str, *, on_ci: bool
) -> None:
    monkeypatch.delenv("CI", raising=False)
    if on_ci:
        monkeypatch.setenv("CI", "true")
    item: Any = SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(markexpr=markexpr)))
    report: Any = SimpleNamespace(skipped=True, outcome="skipped", longrepr="no browser")
    steps = chosen.pytest_runtest_makereport(item)
    next(steps)
    with pytest.raises(StopIteration) as done:
        steps.send(report)
    assert done.value.value.outcome == outcome
