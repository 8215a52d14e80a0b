"""The directory of a run in shared memory."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from hangwatch.run import rundir
from hangwatch.safety import untrusted

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = time.time() - 2 * rundir.YOUNG_S


def make(base: Path, run_id: str = "r1") -> rundir.RunDir:
    """A run directory below base, made and swept round as a supervisor does."""
    held = rundir.make(run_id, {"HANGWATCH_DIR": str(base)})
    rundir.sweep(held.path.parent)
    return held


def join(base: Path) -> rundir.RunDir:
    """Return the directory below base that the commands of one job share."""
    return rundir.join("job-1", {"HANGWATCH_DIR": str(base)})


def test_only_its_owner_may_enter_it(tmp_path: Path) -> None:
    held = make(tmp_path)
    assert held.path == tmp_path / f"hangwatch-{os.getuid()}" / f"r1-{os.getpid()}"
    for path in (held.path, held.path.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    held.remove()
    assert not held.path.exists()


def test_it_is_removed_though_something_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = make(tmp_path)
    (held.path / "r0-0-1.page").touch()
    fails = iter([True])
    scan = os.scandir

    def scandir(where: int) -> object:
        if next(fails, False):
            raise OSError(errno.EIO, "as a busy file server may say")
        return scan(where)

    monkeypatch.setattr(os, "scandir", scandir)
    held.remove()
    assert next(fails, None) is None
    assert not held.path.exists()


def test_what_a_dead_supervisor_left_is_swept_by_the_next_run(tmp_path: Path) -> None:
    dead = make(tmp_path, "dead")
    (dead.path / "r0-0-1.page").touch()
    os.close(dead.lock)
    os.utime(dead.path, (LONG_AGO, LONG_AGO))
    held = make(tmp_path, "next")
    assert list(held.path.parent.iterdir()) == [held.path]
    held.remove()


def test_what_a_living_supervisor_holds_is_not_swept(tmp_path: Path) -> None:
    living = make(tmp_path, "living")
    os.utime(living.path, (LONG_AGO, LONG_AGO))
    held = make(tmp_path, "next")
    assert living.path.exists()
    living.remove()
    held.remove()


def test_what_is_just_being_made_is_not_swept(tmp_path: Path) -> None:
    held = make(tmp_path)
    fresh = held.path.with_name("fresh-1")
    fresh.mkdir()
    held.remove()
    make(tmp_path).remove()
    assert fresh.exists()


def test_a_directory_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    parent = tmp_path / f"hangwatch-{os.getuid()}"
    parent.mkdir(mode=0o777)
    parent.chmod(0o777)
    make(tmp_path).remove()
    assert parent.stat().st_mode & 0o777 == 0o700


def test_a_base_that_does_not_serve_is_passed_over_and_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    held = make(missing)
    assert held.lost == f"{missing}: No such file or directory"
    assert tmp_path not in held.path.parents
    held.remove()


def test_a_link_in_the_place_of_our_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"hangwatch-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    held = make(tmp_path)
    assert "belongs to another user" in held.lost
    assert list((tmp_path / "elsewhere").iterdir()) == []
    held.remove()


def test_where_no_base_serves_all_of_them_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = [tmp_path / "a", tmp_path / "b"]
    monkeypatch.setattr(rundir, "bases", lambda _: iter(bases))
    with pytest.raises(OSError, match=r"a: No such file.*b: No such file"):
        rundir.make("r1", {})


def test_commands_of_one_job_share_a_directory_until_the_last_one_leaves(tmp_path: Path) -> None:
    first, second = (join(tmp_path) for _ in range(2))
    assert first.path == second.path == tmp_path / f"hangwatch-{os.getuid()}" / "job-1"
    (first.path / "r0-0-1.page").touch()
    first.remove()
    assert (second.path / "r0-0-1.page").exists()
    second.remove()
    assert not second.path.exists()
    third = join(tmp_path)
    assert [path.name for path in third.path.iterdir()] == ["lock"]
    third.remove()


def test_what_a_dead_job_left_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    dead = join(tmp_path)
    (dead.path / "watchdog.json").write_text("{}")
    os.close(dead.lock)
    held = join(tmp_path)
    assert [path.name for path in held.path.iterdir()] == ["lock"]
    held.remove()


def test_a_shared_directory_is_swept_only_when_nobody_holds_it(tmp_path: Path) -> None:
    held = join(tmp_path)
    os.utime(held.path, (LONG_AGO, LONG_AGO))
    make(tmp_path, "next").remove()
    assert held.path.exists()
    os.close(held.lock)
    make(tmp_path, "next").remove()
    assert not held.path.exists()


def test_who_holds_the_lock_of_a_directory_that_is_gone_empties_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join(tmp_path)
    opened = iter([os.open(first.path / rundir.LOCK, os.O_RDWR | os.O_CLOEXEC)])
    first.remove()
    second = join(tmp_path)
    page = second.path / "r0-0-1.page"
    page.touch()
    usual = untrusted.open_ours

    def open_ours(path: Path, *, create: bool) -> int:
        return next(opened, None) or usual(path, create=create)

    monkeypatch.setattr(untrusted, "open_ours", open_ours)
    third = join(tmp_path)
    assert next(opened, None) is None
    assert page.exists()
    third.remove()
    second.remove()


def test_those_that_come_and_go_at_the_same_time_always_share_one(tmp_path: Path) -> None:
    def come_and_go(number: int) -> bool:
        held = join(tmp_path)
        own = held.path / f"own-{number}"
        own.touch()
        time.sleep(0.002)
        kept = own.exists()
        held.remove()
        return kept

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(come_and_go, range(80)))
    assert list((tmp_path / f"hangwatch-{os.getuid()}").iterdir()) == []
