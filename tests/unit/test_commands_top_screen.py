"""How a picture is drawn: it fits, it is honest, and hostile text stays text."""

from __future__ import annotations

import io
import os
import time
from dataclasses import replace
from pathlib import Path

import made_pages
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_hello import facts
from rich.cells import cell_len
from rich.console import Console

from hangwatch.commands import runs
from hangwatch.commands.top.picture import Picture, RunView
from hangwatch.commands.top.rows import Row, Trouble
from hangwatch.commands.top.screen import draw, line
from hangwatch.evidence.processes import read_stat
from hangwatch.model.calls import Site
from hangwatch.model.kinds import OpState

SITE = Site("/home/ada/train.py", 41, "main", "loss.backward()")
FACTS = facts(
    "night-7",
    command=("torchrun", "--nproc-per-node=8", "train.py"),
    command_pid=2,
    supervisor_pid=1,
)
HEALTHY = tuple(
    Row((rank,), pid=4000 + rank, last=("default_pg #1203",), rate=41.2, beat_s=0.2)
    for rank in range(8)
)
HUNG = (
    Row((2,), Trouble.CULPRIT, pid=4002, does="data loading", site=SITE, behind=1, beat_s=0.1),
    *(
        Row(
            (rank,),
            Trouble.WAITS,
            pid=4000 + rank,
            does="all_reduce #46",
            group="default_pg",
            waits_s=12.3,
            site=SITE,
            last=("default_pg #46",),
            rate=0.0,
        )
        for rank in (0, 1, 3)
    ),
)
PICTURE = Picture(
    run=runs.Run(Path("/dev/shm/hangwatch-0/night-7-1"), FACTS),  # noqa: S108 (never opened)
    at=1_767_323_045.0,
    rows=HEALTHY,
    state="going on",
    summary="8 ranks here, 41 calls/s each",
    alarming=False,
    slowed=False,
    report=None,
    notes=(),
)
INCIDENT = replace(
    PICTURE,
    rows=HUNG,
    state="HANG (likely)",
    summary="Rank 2 never entered all_reduce #46 of group default_pg: it is loading data.",
    alarming=True,
    report=Path("reports/night-7/incident-001"),
)
HOSTILE = "\x1b]0;owned\x07[bold red]x[/]\r\n\u202e\U0001f4a3 漢字"


def drawn(picture: Picture, width: int = 100, height: int | None = None) -> list[str]:
    """The lines as a terminal of that size has them, without colours."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height or 25, markup=False, highlight=False)
    console.print(draw(picture, width, height))
    return out.getvalue().splitlines()


def test_a_healthy_run_shows_how_fast_it_goes() -> None:
    lines = drawn(PICTURE)
    assert lines[0].startswith("night-7  torchrun --nproc-per-node=8 train.py")
    assert lines[1] == "going on: 8 ranks here, 41 calls/s each"
    assert lines[3].split() == ["rank", "calls/s", "last", "behind", "beat", "waits", "in", "at"]
    assert lines[4].split() == ["0", "41", "default_pg", "#1203", "0.2", "s"]
    assert len(lines) == 12


def test_at_eighty_columns_call_and_line_are_there() -> None:
    lines = drawn(INCIDENT, 80, 24)
    text = "\n".join(lines)
    assert lines[1].startswith("HANG (likely): Rank 2 never entered all_reduce #46")
    assert "data loading" in text
    assert "12 s all_reduce #46 train.py:41" in text
    assert "hangwatch report reports/night-7/incident-001" in text


def test_on_a_wide_screen_the_group_and_the_source_too() -> None:
    text = "\n".join(drawn(INCIDENT, 200, 50))
    assert "all_reduce #46 of default_pg" in text
    assert "train.py:41  loss.backward()" in text
    assert " 4002 " in text


def test_where_there_is_little_room_the_number_of_the_line_stays() -> None:
    site = Site("/home/ada/a_program_with_a_very_long_name.py", 4711, "main")
    groups = ("mesh_dp #11", "mesh_tp #12", "mesh_pp 21 p2p")
    row = replace(HUNG[1], site=site, last=groups, does="recv from rank 4")
    (said,) = (one for one in drawn(replace(INCIDENT, rows=(row,)), 80) if one.startswith("0 "))
    assert said.rstrip().endswith("g_name.py:4711")
    assert " mesh_dp #11 +2 " in said


def test_several_nodes_get_a_column() -> None:
    rows = (*HUNG, replace(HUNG[1], ranks=(9,), node="node-b"))
    text = "\n".join(drawn(replace(INCIDENT, rows=rows), 120))
    assert "node-b" in text
    assert "here" in text


def test_what_does_not_fit_is_summed_up() -> None:
    many = tuple(replace(HEALTHY[0], ranks=(rank,), rate=40.0 + rank % 3) for rank in range(1000))
    lines = drawn(replace(PICTURE, rows=many), 80, 24)
    assert len(lines) <= 24
    assert lines[-1].strip() == "... 982 more ranks, 40-42 calls/s each"


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10), (20, 5), (10, 3), (1, 1)])
@pytest.mark.parametrize("picture", [PICTURE, INCIDENT], ids=["healthy", "hung"])
def test_it_fits_any_window(size: tuple[int, int], picture: Picture) -> None:
    width, height = size
    lines = drawn(replace(picture, notes=("one", "two", "three", "four", "five")), width, height)
    assert all(cell_len(one) <= width for one in lines)
    if height >= 10:
        assert len(lines) < height


def test_hostile_text_stays_text_on_its_line() -> None:
    site = Site(HOSTILE, 1, HOSTILE, HOSTILE)
    row = Row((0,), Trouble.WAITS, HOSTILE, 1, HOSTILE, HOSTILE, 1.0, site, (HOSTILE,))
    hostile = replace(FACTS, run_id=HOSTILE, command=(HOSTILE,), node=HOSTILE)
    picture = replace(
        PICTURE,
        run=runs.Run(Path(HOSTILE), hostile),
        rows=(row, replace(row, ranks=(1,), node="")),
        summary=HOSTILE,
        notes=(HOSTILE,),
        report=Path(HOSTILE),
    )
    lines = drawn(picture, 200)
    assert "\x1b" not in "".join(lines)
    assert "\u202e" not in "".join(lines)
    assert "[bold red]x[/]" in "".join(lines)
    assert all(cell_len(one) <= 200 for one in lines)
    assert "\n" not in line(picture)


def test_a_plain_line_says_who_and_where() -> None:
    said = line(INCIDENT)
    assert said[8:].startswith(" HANG (likely): Rank 2 never entered all_reduce #46")
    assert "; rank 2 data loading, 1 behind, at train.py:41" in said
    assert said.endswith("; ranks 0, 1, 3 in all_reduce #46 of default_pg, 12 s, at train.py:41")


def test_a_plain_line_of_many_ranks_stays_short() -> None:
    rows = (HUNG[0], *(replace(HUNG[1], ranks=(rank,)) for rank in range(3, 1000)))
    said = line(replace(INCIDENT, rows=rows))
    assert "; ranks 3-999 in all_reduce #46 of default_pg" in said
    assert len(said) < 300


@settings(max_examples=60)
@given(
    st.integers(1, 300),
    st.integers(1, 100),
    st.lists(
        st.builds(
            Row,
            st.tuples(st.integers(0, 1 << 20)),
            st.sampled_from(Trouble),
            node=st.text(max_size=20),
            does=st.text(max_size=40),
            last=st.lists(st.text(max_size=30), max_size=5).map(tuple),
            waits_s=st.none() | st.floats(0, 1e9),
            rate=st.none() | st.floats(0, 1e9),
            behind=st.integers(0, 1 << 40),
        ),
        max_size=30,
    ),
)
def test_anything_can_be_drawn_anywhere(width: int, height: int, rows: list[Row]) -> None:
    lines = drawn(replace(INCIDENT, rows=tuple(rows)), width, height)
    assert all(cell_len(one) <= width for one in lines)


def test_a_thousand_pages_fit_and_are_read_in_time(tmp_path: Path) -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    then_ns = time.monotonic_ns() - 10**10
    call = made_pages.event(4, OpState.BLOCKED, issued_ns=then_ns, blocked_ns=then_ns)
    group = made_pages.group(4, completed=3, left=3, changed_ns=then_ns)
    for rank in range(1000):
        changes = {"events": (call,), "groups": (group,)} if rank else {}
        page = made_pages.page(rank, start_ticks=stat.start_ticks, world_size=1000, **changes)
        made_pages.write(tmp_path, page)
    with RunView(runs.describe(tmp_path)) as view:
        view.picture()
        began = time.process_time()
        for _ in range(3):
            lines = drawn(view.picture(), 80, 24)
        spent_s = (time.process_time() - began) / 3
    assert len(lines) < 24
    assert any(one.startswith("1-999 ") for one in lines)
    assert spent_s < 2.0, "of a core, each second: three times what it takes here"
