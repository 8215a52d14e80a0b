"""What a test run asks once more, and what never."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import late
import pytest

ANSWERS = {
    "right": "",
    "wrong": "assert 1 == 2",
    "late": "once() or until(lambda: False, 'an answer', 0)",
    "late_process": "once() or subprocess.run(['sleep', '9'], timeout=0.01)",
    "late_twice": "until(lambda: False, 'an answer', 0)",
    "late_then_wrong": "assert not once() and until(lambda: False, 'an answer', 0)",
    "timed_out": "once() or time.sleep(60)",
    "late_then_skipped": "pytest.skip() if once() else until(lambda: False, 'an answer', 0)",
    "late_after_wrong": """
    try:
        assert 1 == 2
    finally:
        until(lambda: False, 'the end', 0)""",
    "late_of_the_programs": "raise TimeoutError('the program has one of its own')",
}
HEAD = """
import subprocess
import time
from pathlib import Path
import pytest
from waiting import until

@pytest.fixture
def once(request):
    path = Path(__file__).with_name(request.node.name)
    return lambda: path.exists() or path.touch()
"""
SUITE = Path(late.__file__).parent


def asked(where: Path, *answers: str, workers: int = 0) -> tuple[int, list[str], str]:
    """The exit code of a run of tests that answer so, what it says of late ones, its last line."""
    tests = (
        f"def test_{n}_{name}(once):\n    {ANSWERS[name] or 'pass'}"
        for n, name in enumerate(answers)
    )
    (where / "test_them.py").write_text("\n\n".join((HEAD, *tests)))
    options = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p xdist -p late -p pytest_timeout --timeout=3",
    }
    done = subprocess.run(  # noqa: S603 (our own Python)
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--color=no",
            "-n",
            str(workers),
            f"--rootdir={where}",
            where,
        ],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(SUITE), **options},
        capture_output=True,
        text=True,
        check=False,
    )
    told = re.findall(r"^did not answer.*$", done.stdout, re.MULTILINE)
    return done.returncode, told, done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("answer", "workers"), [("late", 0), ("late", 2), ("late_process", 0), ("timed_out", 0)]
)
def test_an_answer_that_did_not_come_is_asked_for_once_more_and_told(
    tmp_path: Path, answer: str, workers: int
) -> None:
    code, told, last = asked(tmp_path, "right", answer, workers=workers)
    assert code == 0
    assert told == [f"did not answer, then did: test_them.py::test_1_{answer}"]
    assert "1 passed, 1 answered late" in last
    logs = sorted(path.name for path in (tmp_path / late.KEPT).glob("*.log"))
    assert logs == [f"test_them-py-test_1_{answer}.{which}.log" for which in ("first", "second")]
    assert "waited 0 s for an answer" in (tmp_path / late.KEPT / logs[0]).read_text() or (
        answer != "late"
    )


@pytest.mark.parametrize("answer", ["late_twice", "late_then_wrong", "late_then_skipped"])
def test_who_fails_twice_is_red(tmp_path: Path, answer: str) -> None:
    code, told, last = asked(tmp_path, "right", answer)
    assert (code, told) == (1, [f"did not answer twice: test_them.py::test_1_{answer}"])
    assert "1 failed, 1 passed" in last


@pytest.mark.parametrize("answer", ["wrong", "late_of_the_programs", "late_after_wrong"])
def test_a_wrong_answer_is_never_asked_for_again(tmp_path: Path, answer: str) -> None:
    assert asked(tmp_path, answer, "right")[:2] == (1, [])
    # Nor is anything else then: the run is red.
    code, told, _ = asked(tmp_path, answer, "late")
    assert (code, told) == (1, ["did not answer: test_them.py::test_1_late"])
    assert not list((tmp_path / late.KEPT).glob("*.log"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_late_one_does_not_excuse_a_file_that_cannot_be_imported(
    tmp_path: Path, workers: int
) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    assert asked(tmp_path, "right", "late", workers=workers)[0] != 0


@pytest.mark.parametrize("broken", ["pytest.exit('enough', 7)", "raise KeyboardInterrupt"])
def test_a_late_one_does_not_excuse_a_run_that_was_broken_off(tmp_path: Path, broken: str) -> None:
    (tmp_path / "conftest.py").write_text(
        f"import pytest\n\ndef pytest_runtest_teardown(nextitem):\n"
        f"    if nextitem is None:\n        {broken}\n"
    )
    assert asked(tmp_path, "late", "right")[0] not in (0, 1)


def test_more_than_a_few_late_ones_are_red(tmp_path: Path) -> None:
    code, told, _ = asked(tmp_path, *["late_process"] * (late.MOST + 1))
    assert code == 1
    assert len(told) == late.MOST + 1
