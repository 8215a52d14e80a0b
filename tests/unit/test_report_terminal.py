"""The verdict as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import slow_evidence
from incident import EVIDENCE, TRAIN, VERDICT, WORLD

from hangwatch.efficiency.habits import Finding, note_of
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Certainty, Cost, Kind, Reason, State, What
from hangwatch.model.report import Straggler, Stragglers, Why
from hangwatch.model.verdict import OK, RootCause, Verdict, Wait
from hangwatch.report.build import build_report
from hangwatch.report.straggler import build_straggler_report
from hangwatch.report.terminal import (
    PLAIN,
    Style,
    format_notes,
    format_straggler,
    format_stragglers,
    format_verdict,
)
from hangwatch.text import fold_ranks

WHERE = Path("hangwatch-reports/night-7/incident-001")


def lines(
    verdict: Verdict = VERDICT, where: Path | None = WHERE, style: Style = PLAIN
) -> list[str]:
    """The block for a verdict."""
    report = build_report(replace(EVIDENCE, verdicts=(verdict,)))
    return list(format_verdict(report, where, style))


def test_the_whole_block_reads_well() -> None:
    assert lines(style=Style(90)) == [
        "hangwatch: HANG (likely, stuck for 8.3 s)",
        "  Rank 2 is stuck in its data loader; ranks 0, 1, 3 wait for it in all_reduce #41.",
        "  A worker of its DataLoader has been in __getitem__ for 8.2 s.",
        "  waiting    ranks 0, 1, 3 in all_reduce #41 of default_pg, 8.3 s, at ada/train.py:9,",
        "             for rank 2",
        "  culprit    rank 2: never entered, data loading",
        "             rank 2 is process 4002 on node-a",
        "  code       /home/ada/train.py:4 in __getitem__",
        "               2      def __getitem__(self, index):",
        "               3          if index == 160:",
        "             > 4              time.sleep(3600)  # a dead mount",
        "               5          return sample",
        "               6",
        "  stack      __getitem__  ada/train.py:4",
        "             main  ada/train.py:8",
        "  what to do - Look at what __getitem__ reads.",
        "             - Give the DataLoader a timeout.",
        "  not seen   rank 3: no Flight Recorder: it did not answer",
        "  report     hangwatch-reports/night-7/incident-001",
    ]


def test_a_stored_report_prints_the_same() -> None:
    report = build_report(EVIDENCE)
    again = json.loads(json.dumps(report))
    assert list(format_verdict(again, WHERE)) == list(format_verdict(report, WHERE))


def test_a_report_below_here_is_named_as_it_is_reached_from_here() -> None:
    below = Path.cwd() / "reports/r/incident-001"
    assert lines(where=below)[-1] == "  report     reports/r/incident-001"
    assert lines(where=Path("/else/incident-001"))[-1] == "  report     /else/incident-001"


def test_a_report_that_could_not_be_written_is_said_to_be_missing() -> None:
    assert lines(where=None)[-1] == "  report     none could be written"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_it_keeps_to_the_width_of_the_terminal(width: int) -> None:
    long = replace(VERDICT, headline="word " * 60, explanation="ünï " * 80)
    shown = lines(long, style=Style(width))
    paths = re.compile(r"/|incident-001")
    assert all(len(line) <= width or paths.search(line) for line in shown)


def test_a_long_line_of_code_is_cut_to_the_width() -> None:
    wide = Site("/home/ada/other.py", 3, "f", "x = '" + "数" * 100 + "'")
    shown = lines(replace(VERDICT, site=wide), style=Style(60))
    (code,) = (line for line in shown if "数" in line)
    assert code.endswith("...")
    assert len(code) + code.count("数") <= 60


def test_control_characters_from_outside_never_reach_the_terminal() -> None:
    evil = replace(
        VERDICT,
        headline="a\x1b[2Jb",
        explanation="c\x07d\ne",
        advice=("f\x1bg",),
        site=Site("/x/\x1b.py", 1, "\x1bh", "\x1b[31m"),
        waits=(Wait(0, WORLD, 1, "\x1bop", (2,), 1.0, None),),
    )
    shown = "\n".join(lines(evil, where=Path("x\x1by")))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", shown)
    assert r"\x1b[2Jb" in shown


def test_colour_marks_the_state_only_where_it_was_asked_for() -> None:
    assert not any("\x1b" in line for line in lines())
    first, second, *_ = lines(style=Style(colour=True))
    assert first.startswith("hangwatch: \x1b[1;31mHANG\x1b[0m (likely")
    assert second.startswith("  \x1b[1mRank 2")


def test_nothing_found_is_one_line_more_than_the_state() -> None:
    assert lines(OK) == [
        "hangwatch: OK (proved)",
        "  Nothing is stuck.",
    ]


def test_ranks_that_wait_in_many_places_are_cut_short() -> None:
    waits = tuple(Wait(r, WORLD, r + 1, "recv", (r + 1,), 1.0, None) for r in range(9))
    shown = lines(replace(VERDICT, waits=waits))
    start = next(i for i, line in enumerate(shown) if line.startswith("  waiting"))
    assert shown[start] == "  waiting    rank 1 in recv #2 of default_pg, 1.0 s, for rank 2"
    assert (
        shown[start + 1]
        == "             rank 0 in recv #1 of default_pg, 1.0 s, for rank 1 (1 -> 2)"
    )
    assert shown[start + 4] == "             and 5 more places, see report.json"


def test_a_long_way_to_the_culprit_is_cut_in_the_middle() -> None:
    waits = tuple(Wait(r, WORLD, 1, "recv", (r - 1,), 1.0, None) for r in range(14, 2, -1))
    shown = " ".join(" ".join(lines(replace(VERDICT, waits=waits))).split())
    assert "for rank 13 (13 -> 12 -> 11 -> 10 -> 9 -> 8 -> ... -> 2)" in shown


def test_a_group_that_nobody_described_is_known_by_its_ranks() -> None:
    waits = (Wait(0, GroupKey((0, 2), "undefined"), 3, "all_reduce", (2,), 1.0, None),)
    shown = lines(replace(VERDICT, waits=waits))
    assert "  waiting    rank 0 in all_reduce #3 of ranks 0, 2, 1.0 s, for rank 2" in shown


def test_a_verdict_without_waits_names_the_victims() -> None:
    shown = lines(replace(VERDICT, waits=()))
    assert "  waiting    ranks 0, 1, 3" in shown


def test_the_culprits_line_is_shown_alone_where_the_file_is_not_at_hand() -> None:
    shown = lines(replace(VERDICT, site=Site("/gone.py", 7, "load", "read()")))
    at = shown.index("  code       /gone.py:7 in load")
    assert shown[at + 1] == "             > read()"
    assert lines(replace(VERDICT, site=Site("/gone.py", 7, "load")))[at + 1].startswith("  stack")


def test_the_main_threads_stack_is_shown_where_none_has_the_verdicts_line() -> None:
    shown = lines(replace(VERDICT, site=None))
    assert "  stack      get  multiprocessing/queues.py:113" in shown


def test_a_verdict_without_culprit_shows_no_stack() -> None:
    shown = lines(replace(VERDICT, culprits=(), kind=Kind.COLLECTIVE_STUCK, site=None))
    assert not any(line.startswith(("  culprit", "  stack", "  code")) for line in shown)


def test_it_is_said_of_what_a_verdict_is_how_sure() -> None:
    found = replace(VERDICT, certainty=Certainty.POSSIBLE, hang=Certainty.PROVED)
    report = build_report(replace(EVIDENCE, verdicts=(found,)))
    assert report["verdict"]["certainty"] == "possible"
    assert report["verdict"]["certainty_of"] == {"hang": "proved", "culprits": "possible"}
    first = next(iter(format_verdict(report, WHERE)))
    assert first.startswith("hangwatch: HANG (proved, who did it: possible, stuck for ")


def test_why_it_came_to_it_is_told_where_the_source_shows_it() -> None:
    loop = RootCause(What.UNEVEN_LOOP, Certainty.POSSIBLE, None, "The loop ended.", ("Rank 2: x.",))
    cause = RootCause(
        What.EARLY_EXIT,
        Certainty.POSSIBLE,
        Site("/home/ada/train.py", 4, "main"),
        "It left by `break`.",
        ("Rank 2: here.",),
        (loop,),
    )
    told = lines(replace(VERDICT, cause=cause))
    assert told[3:6] == [
        "  cause      - (possible) It left by `break`.",
        "             - (possible) The loop ended.",
        "             Rank 2: here.",
    ]
    assert "  cause      (possible) The loop ended." in lines(replace(VERDICT, cause=loop))
    assert lines(replace(VERDICT, cause=replace(cause, evidence=()))) == lines()


def test_other_verdicts_are_told_in_one_line_each() -> None:
    other = Verdict(
        State.SLOW, Kind.DIED, Reason.SIGNAL, Certainty.LIKELY, (1,), headline="Rank 1 died."
    )
    report = build_report(replace(EVIDENCE, verdicts=(VERDICT, other)))
    assert "  also       SLOW (likely) Rank 1 died." in list(format_verdict(report, WHERE))


@pytest.mark.parametrize(
    ("ranks", "folded"),
    [
        ([], ""),
        ([5], "5"),
        ([1, 0], "0, 1"),
        ([0, 1, 3, 4, 5, 6, 7], "0, 1, 3-7"),
        ([2, 2, 3, 4], "2-4"),
    ],
)
def test_ranks_are_folded_as_people_write_them(ranks: list[int], folded: str) -> None:
    assert fold_ranks(ranks) == folded


def test_a_file_is_known_by_the_end_of_its_path() -> None:
    assert "at ada/train.py:9" in "\n".join(lines())
    assert TRAIN.endswith("ada/train.py")


def test_costly_mistakes_stand_in_a_block_of_their_own_at_the_end() -> None:
    notes = (note_of(Finding(Cost.ONE_GPU, (0, 1), count=2, other=1)),)
    report = build_report(replace(EVIDENCE, notes=notes))
    assert list(format_notes(report["notes"], Style(80))) == [
        "hangwatch: this cost the run time or accuracy, but did not hang it",
        "  - Ranks 0 and 1, all that are on this node, used GPU 2, while 1 other lay",
        "    idle. They shared the memory and the time of one device.",
        "    Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything",
        "    uses CUDA.",
        "    https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_device.html",
    ]
    assert list(format_notes(())) == []
    assert any(
        line.startswith("  at a cost  Ranks 0 and 1, all") for line in format_verdict(report)
    )


def test_stragglers_are_told_with_what_they_cost() -> None:
    straggler = Straggler((2, 5), 0.344, 30.0, 120.0)
    pids = {2: 71, 5: 74, 6: 75}
    report = build_straggler_report(replace(slow_evidence.EVIDENCE, straggler=straggler, pids=pids))
    assert list(format_straggler(report, Path("/r/straggler-001"), Style(90))) == [
        "hangwatch: STRAGGLER (34 % of the time)",
        "  The other ranks wait for ranks 2 and 5 again and again, and they for none of them.",
        "  cost       34 % of 90 s, from 30 s after the start on: so much less time would have",
        "             been needed if ranks 2 and 5 took as long as the others",
        "  culprit    rank 2 is process 71 on node-a",
        "             rank 5 is process 74 on node-a",
        "  what to do Compare what it does in a step with what another rank does: a slower data",
        "             loader or disk, files or logs that only some ranks write, longer sequences,",
        "             a CPU that others use, too. `py-spy record --pid` on both shows where the",
        "             time goes.",
        "  report     /r/straggler-001",
    ]
    assert list(format_straggler(report))[-1] == "  report     none could be written"
    assert "report" not in list(format_straggler(report, stored=False))[-1]


TRAIN_LINE = Site("/home/ada/train.py", 12, "step", "read(batch)")
READ_LINE = Site("/home/ada/data.py", 9, "read", "file.read()")


@pytest.mark.parametrize(
    ("why", "cause", "advice"),
    [
        (
            Why(Reason.USER_CODE, TRAIN_LINE, 0.55, 0, 0.0),
            "Rank 2 is at train.py:12 for 55 % of its time, rank 0 for 0 %.",
            "If other ranks do not do it, do it less often",
        ),
        (
            Why(Reason.UNEVEN_WORK, TRAIN_LINE, 0.7, 0, 0.2),
            "rank 0 for 20 %. Both do the same; it has more of it, or is slower.",
            "Give all ranks as much to do",
        ),
        (
            Why(Reason.UNEVEN_WORK, TRAIN_LINE, 0.7, 0, 0.2, like_site=READ_LINE),
            "rank 0 for 20 % at data.py:9. Both do the same; it has more of it, or is slower.",
            "Give all ranks as much to do",
        ),
        (
            Why(Reason.UNEVEN_WORK, like=0),
            "Rank 2 takes longer than rank 0 at many lines.",
            "Give all ranks as much to do",
        ),
        (
            Why(Reason.DATA_LOADING, READ_LINE, 0.8, 0, 0.1, TRAIN_LINE),
            "it waits there for a worker of its data loader, which is at data.py:9.",
            "Look what its data loader reads",
        ),
        (
            Why(Reason.USER_CODE, READ_LINE, 0.8, 0, 0.1, TRAIN_LINE, "reader"),
            "it waits there for its thread reader, which is at data.py:9.",
            "If other ranks do not do it, do it less often",
        ),
        (
            Why(Reason.CPU_CONTENTION, like=0),
            "Rank 2 waits for a CPU, and rank 0 does not.",
            "Look what else runs on its CPUs",
        ),
        (
            Why(Reason.CPU_THROTTLED, like=0),
            "Rank 2 waits for a CPU, since the limit of its container is reached, and rank 0",
            "Raise the limit of its container",
        ),
        (
            Why(Reason.CHECKPOINT_IO, TRAIN_LINE, 1.0, 0, 0.0, held=True),
            "While the others wait, rank 2 is at train.py:12. It writes or reads files there.",
            "Write checkpoints beside the training",
        ),
        (
            Why(Reason.UNEVEN_WORK, TRAIN_LINE, 1.0, 0, 0.3, held=True),
            "While the others wait, rank 2 is at train.py:12. cost",
            "Give all ranks as much to do",
        ),
    ],
)
def test_the_cause_of_a_straggler_is_told_with_what_to_do(
    why: Why, cause: str, advice: str
) -> None:
    straggler = Straggler((2,), 0.344, 30.0, 120.0, why)
    report = build_straggler_report(replace(slow_evidence.EVIDENCE, straggler=straggler))
    block = list(format_straggler(report))
    text = " ".join(" ".join(block).split())
    assert cause in text
    assert f"what to do {advice}" in text
    assert (f"{why.site.file}:{why.site.line} in" in text) if why.site else ("code" not in text)


def test_the_end_of_a_run_sums_up_what_stragglers_have_cost() -> None:
    reads = Why(Reason.USER_CODE, READ_LINE, 0.8, 0, 0.1, TRAIN_LINE, "reader")
    found = (Straggler((2,), 0.5, 30.0, 90.0, reads), Straggler((0, 1), 0.1, 100.0, 400.0))
    assert list(format_stragglers(Stragglers(found, 400.0))) == [
        "hangwatch: stragglers have cost this run 60 s",
        "  - rank 2: 50 % of 60 s, from 30 s after the start on, at data.py:9",
        "  - ranks 0 and 1: 10 % of 5 min, from 100 s after the start on",
    ]
    assert list(format_stragglers(Stragglers())) == []
