"""Which pages the watchdog reads, and what it does with those it cannot."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from made_pages import page, write

from hangwatch.console import News
from hangwatch.evidence.pages.finder import MAX_REPORTED, Pages
from hangwatch.evidence.pages.reader import MAX_BYTES
from hangwatch.model.kinds import Phase

pytest_plugins = ["said_news"]


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def test_finds_the_page_of_each_rank(run_dir: Path, news: News) -> None:
    pages = Pages(run_dir, news)
    assert pages.look() == {}
    assert not pages.any_ever
    write(run_dir, page(1))
    write(run_dir, page(0))
    assert list(pages.look()) == [0, 1]
    assert pages.any_ever


def test_a_page_that_nobody_writes_any_more_may_be_cut_while_it_is_read(
    run_dir: Path, news: News
) -> None:
    last = int(Path("/proc/sys/kernel/pid_max").read_text())
    write(run_dir, page(0, pid=os.getpid()))
    write(run_dir, page(1, pid=last))  # pids are below it
    seen = Pages(run_dir, news).look()
    assert [seen[rank].page.memory is None for rank in (0, 1)] == [False, True]
    assert seen[1].light.identity.rank == 1


def test_a_page_is_read_anew_each_time(run_dir: Path, news: News) -> None:
    write(run_dir, page(0, phase=Phase.BORN))
    pages = Pages(run_dir, news)
    assert pages.look()[0].light.phase is Phase.BORN
    write(run_dir, page(0, phase=Phase.RUNNING))
    assert pages.look()[0].light.phase is Phase.RUNNING


def test_a_process_that_is_no_rank_yet_is_not_listed(run_dir: Path, news: News) -> None:
    write(run_dir, page(-1))
    pages = Pages(run_dir, news)
    assert pages.look() == {}
    assert pages.any_ever


def test_a_restart_is_said_and_gone_on_to_when_asked(run_dir: Path, news: News) -> None:
    write(run_dir, page(0, pid=10))
    write(run_dir, page(1, pid=11))
    pages = Pages(run_dir, news, alive=lambda pid, _: pid == 20)
    pages.look()
    assert not pages.superseded
    write(run_dir, page(0, pid=20, restart=1))
    assert [one.light.identity.pid for one in pages.look().values()] == [10, 11]
    assert (pages.superseded, pages.incarnation, pages.restart) == (True, 0, 0)
    pages.advance()
    for _ in range(2):
        assert [one.light.identity.pid for one in pages.look().values()] == [20]
        assert (pages.superseded, pages.incarnation, pages.restart) == (False, 1, 1)


def test_ranks_that_start_when_all_before_have_ended_are_another_incarnation(
    run_dir: Path, news: News
) -> None:
    ended: dict[int, int] = {}
    for rank, pid in ((2, 10), (3, 11)):
        write(run_dir, page(rank, pid=pid, world_size=4))
    pages = Pages(run_dir, news, alive=lambda pid, _: pid not in ended, ended=lambda: ended)
    assert list(pages.look()) == [2, 3]
    now_ns = time.monotonic_ns()
    ended.update({10: now_ns, 11: now_ns + 1})
    ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    write(run_dir, page(0, pid=20, start_ticks=int(ticks) + 1))
    assert list(pages.look()) == [2, 3]
    assert pages.superseded
    pages.advance()
    assert list(pages.look()) == [0]
    assert pages.restart == 0


def test_a_watchdog_that_takes_over_reads_no_page_of_the_past(run_dir: Path, news: News) -> None:
    write(run_dir, page(0, pid=10))
    write(run_dir, page(0, pid=20, restart=1))
    first, second = Pages(run_dir, news), Pages(run_dir, news)
    first.look()
    first.advance()
    second.restore(first.export())
    assert [one.light.identity.pid for one in second.look().values()] == [20]
    assert (second.superseded, second.incarnation) == (False, 1)


def test_a_page_that_came_further_beats_one_that_was_only_born(run_dir: Path, news: News) -> None:
    write(run_dir, page(0, pid=10, phase=Phase.BORN, created_ns=1))
    write(run_dir, page(0, pid=11, phase=Phase.INIT, created_ns=2))
    pages = Pages(run_dir, news, alive=lambda pid, _: pid == 10)
    assert pages.look()[0].light.identity.pid == 11


def test_among_equals_the_living_and_then_the_oldest_is_the_rank(run_dir: Path, news: News) -> None:
    for pid, created_ns in ((10, 1), (11, 3), (12, 2)):
        write(run_dir, page(0, pid=pid, created_ns=created_ns))
    pages = Pages(run_dir, news, alive=lambda pid, _: pid != 10)
    assert pages.look()[0].light.identity.pid == 12


def test_who_was_started_when_a_rank_had_ended_may_be_in_its_place(
    run_dir: Path, news: News
) -> None:
    write(run_dir, page(0, pid=10, created_ns=1, heartbeat_ns=50))
    write(run_dir, page(0, pid=11, created_ns=40, phase=Phase.BORN))  # a child that it left behind
    pages = Pages(run_dir, news, alive=lambda pid, _: pid != 10)
    assert (pages.look()[0].light.identity.pid, pages.look()[0].replaced) == (10, False)
    write(run_dir, page(0, pid=12, created_ns=60, phase=Phase.BORN))
    assert (pages.look()[0].light.identity.pid, pages.look()[0].replaced) == (10, True)
    write(run_dir, page(0, pid=12, created_ns=60, phase=Phase.INIT))
    assert (pages.look()[0].light.identity.pid, pages.look()[0].replaced) == (12, False)


def test_who_was_started_by_a_rank_that_runs_is_no_successor(run_dir: Path, news: News) -> None:
    write(run_dir, page(0, pid=10, created_ns=1, heartbeat_ns=50))
    write(run_dir, page(0, pid=11, created_ns=40, phase=Phase.BORN))
    write(run_dir, page(0, pid=12, created_ns=60, phase=Phase.BORN))
    pages = Pages(run_dir, news, alive=lambda pid, _: pid != 11)
    assert (pages.look()[0].light.identity.pid, pages.look()[0].replaced) == (10, False)


def test_of_two_that_run_the_one_that_has_not_left_its_groups_is_the_rank(
    run_dir: Path, news: News
) -> None:
    write(run_dir, page(0, pid=10, created_ns=1, phase=Phase.FINALIZING))
    write(run_dir, page(0, pid=11, created_ns=2))
    pages = Pages(run_dir, news, alive=lambda *_: True)
    assert pages.look()[0].light.identity.pid == 11
    # It is back, and the substitute has not ended yet.
    write(run_dir, page(0, pid=10, created_ns=1, phase=Phase.INIT))
    assert pages.look()[0].light.identity.pid == 10


def world(run_dir: Path, port: int, *pids: int, **fields: Any) -> None:
    """The pages of a world, of ranks 0, 1, ... in processes with these pids."""
    for rank, pid in enumerate(pids):
        write(run_dir, page(rank, pid=pid, store_port=port, created_ns=pid, **fields))


def pids_of(pages: Pages) -> list[int]:
    return [seen.light.identity.pid for seen in pages.look().values()]


def test_ranks_of_two_worlds_are_never_mixed(run_dir: Path, news: News, said: Path) -> None:
    living = {10, 11, 12, 20, 21}
    pages = Pages(run_dir, news, alive=lambda pid, _: pid in living)
    world(run_dir, 1, 10, 11, 12)
    assert pids_of(pages) == [10, 11, 12]
    world(run_dir, 2, 20, 21)
    assert pids_of(pages) == [10, 11, 12]
    # The world that is watched is so for as long as anything of it runs.
    living -= {11, 12}
    assert pids_of(pages) == [10, 11, 12]
    assert "several jobs run below this command" in said.read_text()
    assert pages.pids == {10, 11, 12, 20, 21}
    living -= {10}
    assert pids_of(pages) == [20, 21]


def test_a_world_that_is_over_is_none_that_runs_beside(
    run_dir: Path, news: News, said: Path
) -> None:
    world(run_dir, 1, 10, 11)
    pages = Pages(run_dir, news, alive=lambda pid, _: pid != 11)
    assert pids_of(pages) == [10, 11]
    # The same trainer opens a world with the next helper.
    world(run_dir, 2, 10, 12)
    assert pids_of(pages) == [10, 12]
    assert not said.read_text()


def test_a_world_is_not_taken_for_another_by_ranks_that_have_not_come_to_it(
    run_dir: Path, news: News, said: Path
) -> None:
    world(run_dir, 1, 10, 11)
    # What it was born with is the store of the launcher, or of its parent.
    write(run_dir, page(0, pid=20, store_port=2, phase=Phase.BORN))
    write(run_dir, page(2, pid=12, store_port=7))
    pages = Pages(run_dir, news, alive=lambda *_: True)
    assert pids_of(pages) == [10, 11, 12]
    assert not said.read_text()


def test_the_world_of_most_ranks_is_watched_where_they_start_together(
    run_dir: Path, news: News
) -> None:
    world(run_dir, 1, 10)
    world(run_dir, 2, 20, 21)
    assert pids_of(Pages(run_dir, news, alive=lambda *_: True)) == [20, 21]


def test_a_process_that_replaces_itself_is_read_from_its_new_page(
    run_dir: Path, news: News
) -> None:
    path = write(run_dir, page(0, pid=10))
    pages = Pages(run_dir, news)
    assert pages.look()[0].light.phase is Phase.RUNNING
    path.unlink()
    write(run_dir, page(0, pid=10, phase=Phase.INIT))
    assert pages.look()[0].light.phase is Phase.INIT


def test_a_page_in_the_making_is_waited_for(run_dir: Path, news: News, said: Path) -> None:
    clock = Clock()
    (run_dir / "r0-0-10.page").touch()
    pages = Pages(run_dir, news, now=clock)
    assert pages.look() == {}
    (run_dir / "r0-0-10.page").unlink()
    write(run_dir, page(0, pid=10))
    clock.s += 60
    assert list(pages.look()) == [0]
    assert said.read_text() == ""


@pytest.mark.parametrize("content", [b"", b"no page", os.urandom(4096), b"\0" * 5000])
def test_what_is_no_page_is_said_once_and_passed_over(
    run_dir: Path, news: News, said: Path, content: bytes
) -> None:
    clock = Clock()
    (run_dir / "r0-1-11.page").write_bytes(content)
    write(run_dir, page(0))
    pages = Pages(run_dir, news, now=clock)
    for _ in range(4):
        assert list(pages.look()) == [0]
        clock.s += 1.5
    assert said.read_text().count("r0-1-11.page cannot be read") == 1
    assert len(news.lost) == 1


def test_a_page_that_is_cut_under_us_is_passed_over(run_dir: Path, news: News, said: Path) -> None:
    clock = Clock()
    path = write(run_dir, page(0, pid=10))
    pages = Pages(run_dir, news, now=clock)
    assert list(pages.look()) == [0]
    os.truncate(path, 10)
    clock.s += 10
    assert pages.look() == {}
    clock.s += 10
    assert pages.look() == {}
    assert said.read_text().count("cannot be read") == 1


def test_a_page_that_is_overwritten_is_read_again_once_it_is_whole(
    run_dir: Path, news: News
) -> None:
    path = write(run_dir, page(0, pid=10))
    good = path.read_bytes()
    pages = Pages(run_dir, news)
    pages.look()
    path.write_bytes(os.urandom(len(good)))
    assert pages.look() == {}
    path.write_bytes(good)
    assert list(pages.look()) == [0]


def test_other_files_and_links_are_no_pages(run_dir: Path, news: News, tmp_path: Path) -> None:
    elsewhere = write(tmp_path, page(0, pid=10))
    (run_dir / "r0-0-10.page").symlink_to(elsewhere)
    (run_dir / "r0-1-11.page").mkdir()
    os.mkfifo(run_dir / "r0-2-12.page")
    with (run_dir / "r0-3-13.page").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    (run_dir / "watchdog.json").write_text("{}")
    assert Pages(run_dir, news).look() == {}


def test_the_directory_may_vanish_and_its_pages_stay_readable(
    run_dir: Path, news: News, said: Path
) -> None:
    write(run_dir, page(0))
    pages = Pages(run_dir, news)
    pages.look()
    shutil.rmtree(run_dir)
    assert list(pages.look()) == [0]
    assert list(pages.look()) == [0]
    assert said.read_text().count("cannot be read any more") == 1


def test_notes_of_agents_that_cannot_record_are_found(run_dir: Path, news: News) -> None:
    (run_dir / "agent-77.err").write_text("No space left on device\n")
    pages = Pages(run_dir, news)
    pages.look()
    assert pages.notes() == {"agent-77.err": "No space left on device"}


def test_a_note_that_stays_empty_means_that_there_was_no_room(run_dir: Path, news: News) -> None:
    clock = Clock()
    (run_dir / "agent-77.err").touch()
    pages = Pages(run_dir, news, now=clock)
    pages.look()
    assert pages.notes() == {}  # it may still be written
    clock.s += 10
    pages.look()
    assert "No space left" in pages.notes()["agent-77.err"]


def test_what_is_unfinished_when_all_have_ended_stays_so(run_dir: Path, news: News) -> None:
    (run_dir / "agent-77.err").touch()
    pages = Pages(run_dir, news)
    pages.all_ended()
    pages.look()
    assert "No space left" in pages.notes()["agent-77.err"]


def test_a_rank_that_starts_after_the_end_belongs_to_another_run(run_dir: Path, news: News) -> None:
    running = {1, 2}
    pages = Pages(run_dir, news, alive=lambda pid, _: pid in running)
    write(run_dir, page(0, pid=1))
    assert list(pages.look()) == [0]
    pages.command_ended()
    write(run_dir, page(1, pid=2))
    write(run_dir, page(2, pid=3))  # has ended too: it was only never looked at
    assert list(pages.look()) == [0, 2]
    assert not pages.superseded


def test_thousands_of_planted_pages_are_no_thousands_of_lines(run_dir: Path, news: News) -> None:
    for number in range(MAX_REPORTED + 20):
        (run_dir / f"r0-{number}-1.page").touch()
    clock = Clock()
    pages = Pages(run_dir, news, now=clock)
    pages.look()
    clock.s += 60
    pages.look()
    assert len(news.lost) == MAX_REPORTED + 1
    assert news.lost[-1].startswith("more pages cannot be read")
