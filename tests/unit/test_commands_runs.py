"""Finding the run that is meant."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import made_pages
import pytest
from made_hello import facts

from hangwatch.commands import runs
from hangwatch.commands.top import EXIT_UNCLEAR, top
from hangwatch.errors import UsageError
from hangwatch.run import handshake, rundir
from hangwatch.run.shared_run import SharedRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "base").mkdir()
    return {"HANGWATCH_DIR": str(tmp_path / "base")}


@pytest.fixture
def held(environ: dict[str, str]) -> Iterator[rundir.RunDir]:
    found = make("night-7", environ)
    yield found
    found.remove()


def make(run_id: str, environ: dict[str, str], **changes: Any) -> rundir.RunDir:
    """A run that this process supervises."""
    found = rundir.make(run_id, environ)
    second = len(run_id) % 10
    known = {"started_at": f"2026-01-02T03:04:0{second}.000+00:00"}
    facts(run_id, **{**known, **changes}).keep(found.path)
    return found


def ours(environ: dict[str, str]) -> list[runs.Run]:
    """The runs below the base of the test; /dev/shm may have others."""
    base = environ["HANGWATCH_DIR"]
    return [run for run in runs.find(environ) if str(run.path).startswith(base)]


def test_a_run_is_found_while_its_supervisor_holds_it(environ: dict[str, str]) -> None:
    held = make("night-7", environ)
    (run,) = ours(environ)
    assert run.name == "night-7"
    assert runs.is_active(run)
    os.close(held.lock)
    assert ours(environ) == []
    assert not runs.is_active(run)


def test_looking_at_a_run_leaves_its_lock_alone(
    environ: dict[str, str], held: rundir.RunDir
) -> None:
    for _ in range(3):
        assert runs.is_active(runs.describe(held.path))
    make("other", environ).remove()  # sweeps what nobody holds
    assert held.path.exists()


@pytest.mark.parametrize("how", ["id", "directory", "pid", "name of the directory"])
def test_a_run_is_known_by(how: str, environ: dict[str, str], held: rundir.RunDir) -> None:
    word = {
        "id": "night-7",
        "directory": str(held.path),
        "pid": str(os.getpid()),
        "name of the directory": held.path.name,
    }[how]
    assert runs.choose(word, environ).path == held.path


def test_from_inside_a_job_its_own_run_is_meant(
    environ: dict[str, str], held: rundir.RunDir
) -> None:
    other = make("other", environ)
    assert runs.choose("", {"HANGWATCH_DIR": str(held.path)}).path == held.path
    other.remove()


def test_several_runs_are_listed_to_choose_from(
    environ: dict[str, str], held: rundir.RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make("night-8", environ, command=("torchrun", "a\x1b[31m\nb.py"))
    assert top([], environ) == EXIT_UNCLEAR
    said = capsys.readouterr().err
    assert "runs are watched here" in said
    assert "  night-7  pid " in said
    assert "\x1b" not in said
    assert held.path.exists()
    other.remove()


def test_a_word_that_means_nothing_is_an_error(
    environ: dict[str, str], held: rundir.RunDir, tmp_path: Path
) -> None:
    with pytest.raises(runs.UnclearError, match="no run, directory or process") as error:
        runs.choose("day-7", environ)
    assert "night-7" in [run.name for run in error.value.runs]
    with pytest.raises(UsageError, match="is no directory of a run"):
        runs.choose(str(tmp_path), environ)
    assert held.path.exists()


def test_a_directory_with_pages_will_do(tmp_path: Path) -> None:
    made_pages.write(tmp_path, made_pages.page())
    run = runs.choose(str(tmp_path), {})
    assert (run.name, run.facts) == (tmp_path.name, None)
    assert runs.is_active(run)


def test_a_run_whose_directory_was_deleted_goes_on_as_long_as_its_supervisor(
    environ: dict[str, str],
) -> None:
    held = make("night-7", environ)
    (run,) = ours(environ)
    held.remove()
    assert runs.is_active(run)
    assert run.facts is not None
    gone = replace(run, facts=replace(run.facts, supervisor_pid=1 << 22))
    assert not runs.is_active(gone)


def test_a_shared_run_goes_on_until_the_last_of_its_commands(environ: dict[str, str]) -> None:
    held = rundir.join("job-1", environ)
    facts("job-1", shared=True).keep(held.path)
    shared = SharedRun(held.path)
    shared.enter(os.getpid())
    (run,) = ours(environ)
    shared.leave(0)
    assert not runs.is_active(run)
    held.remove()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"schema": "hangwatch.run-facts/1"}', b"\xff" * 99]
)
def test_odd_facts_are_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / handshake.FILE).write_bytes(content)
    assert handshake.read_facts(tmp_path) is None


def test_facts_come_back_as_they_were_kept(tmp_path: Path) -> None:
    told = facts(command=("train", "caf\udce9"), report_dir=tmp_path)
    told.keep(tmp_path)
    assert handshake.read_facts(tmp_path) == told
    assert [path.name for path in tmp_path.iterdir()] == [handshake.FILE]
    assert (tmp_path / handshake.FILE).stat().st_mode & 0o777 == 0o600
