"""What the user's line has called of an installed package: found, said, and reported."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from incident import EVIDENCE, VERDICT
from snapshots import PAIR, SCRIPT, THRESHOLDS, blocked, frame, job, main_thread, op, rank, world

from hangwatch.diagnosis import diagnose
from hangwatch.model import codec
from hangwatch.model.calls import PackageCall, Site
from hangwatch.model.frames import innermost_user_site
from hangwatch.model.kinds import Kind
from hangwatch.model.snapshot import Frame, OpRecord
from hangwatch.report.build import build_report
from hangwatch.report.html import render_page
from hangwatch.report.terminal import format_verdict

if TYPE_CHECKING:
    from hangwatch.model.verdict import Verdict

PACKAGES = "/opt/venv/lib/python3.12/site-packages"
NO_GRAD = Frame(f"{PACKAGES}/torch/utils/_contextlib.py", 120, "context_decorator.<locals>.wrap")
ALL_GATHER = Frame(f"{PACKAGES}/torch/distributed/distributed_c10d.py", 4287, "all_gather")


def of(package: str, *functions: str) -> list[Frame]:
    """Frames of a package, outermost first."""
    return [Frame(f"{PACKAGES}/{package}/module.py", 10, function) for function in functions]


FIT = of("lightning", "Trainer.fit", "_call", "Loop.run", "Strategy.reduce", "_sync")
GATHER = of("accelerate", "Accelerator.gather_for_metrics", "gather", "gather.<locals>.wrapper")


def call(*inside: Frame) -> PackageCall | None:
    """What line 5 of the script calls, its frames given outermost first."""
    site = innermost_user_site([*reversed(inside), frame(5)], {})
    assert site is not None
    assert (site.file, site.line) == (SCRIPT, 5)
    return site.call


@pytest.mark.parametrize(
    ("inside", "found"),
    [
        ([], None),
        ([ALL_GATHER], None),
        # A function of torch's that is deprecated: all_gather_into_tensor since 2.13.
        (
            [
                Frame(f"{PACKAGES}/typing_extensions.py", 1004, "deprecated.<locals>.wrap"),
                ALL_GATHER,
            ],
            None,
        ),
        ([Frame("/usr/lib/python3.12/contextlib.py", 81, "inner"), ALL_GATHER], None),
        (
            [*GATHER, ALL_GATHER],
            PackageCall("accelerate", "Accelerator.gather_for_metrics"),
        ),
        ([*FIT, ALL_GATHER], PackageCall("lightning", "Trainer.fit", "Strategy.reduce")),
        # A package may call another; a wrapper of torch's, or of its own, lies before it.
        (
            [NO_GRAD, *of("deepspeed", "nvtx.<locals>.wrapped", "Engine.forward"), *GATHER],
            PackageCall("deepspeed", "Engine.forward", "Accelerator.gather_for_metrics"),
        ),
        (of("retry", "retry.<locals>.wrapper"), PackageCall("retry", "retry")),
        ([Frame(f"{PACKAGES}/six.py", 3, "wraps")], PackageCall("six", "wraps")),
    ],
)
def test_the_outermost_function_of_a_package_is_what_a_line_calls(
    inside: list[Frame], found: PackageCall | None
) -> None:
    assert call(*inside) == found


def test_the_line_is_that_of_a_hook_where_a_package_calls_the_user_back() -> None:
    stack = [ALL_GATHER, *reversed(GATHER), frame(9, "Hook.on_step"), *reversed(FIT), frame(20)]
    site = innermost_user_site(stack, {})
    assert site == Site(SCRIPT, 9, "Hook.on_step")
    assert site.call == PackageCall("accelerate", "Accelerator.gather_for_metrics")


METRICS = """
def main():
    for step in range(9):
        loss.backward()
        if rank == 0:
            gather_metrics()
"""


def verdict(mine: OpRecord, inside: list[Frame], theirs: OpRecord, others: list[Frame]) -> Verdict:
    """Of two ranks at the lines of their calls, with what lies inside these lines."""
    lines = [record.site.line if record.site else 0 for record in (mine, theirs)]
    before = [op(PAIR, seq, line=4) for seq in (1, 2)]
    stacks = [
        main_thread(*reversed(frames), frame(line), frame(99, "<module>"))
        for line, frames in zip(lines, (inside, others), strict=True)
    ]
    ranks = (
        rank(0, PAIR, *before, mine, threads=stacks[0]),
        rank(1, PAIR, *before, theirs, threads=stacks[1]),
    )
    sources = {SCRIPT: dedent(METRICS)}
    (found,) = diagnose(job(*ranks, sources=sources), THRESHOLDS)
    return found


def test_the_verdict_names_the_call_and_the_users_line() -> None:
    found = verdict(
        blocked(PAIR, 3, "all_gather", line=6),
        GATHER,
        blocked(PAIR, 3, line=4),
        of("accelerate", "Accelerator.backward"),
    )
    assert (found.kind, found.culprits) == (Kind.SUBSET_ENTERED, (0,))
    assert found.headline == (
        "Only rank 0 entered all_gather #3 of group default_pg in Accelerator.gather_for_metrics "
        "of accelerate, called at train.py:6; rank 1 is in all_reduce in "
        "Accelerator.backward of accelerate, called at train.py:4."
    )
    assert "`gather_metrics()`, in Accelerator.gather_for_metrics of accelerate." in (
        found.explanation
    )
    assert found.victim_site is not None
    assert found.victim_site.call == PackageCall("accelerate", "Accelerator.backward")


def test_of_ranks_in_one_call_the_headline_tells_how_deep_they_are_in_it() -> None:
    stacks = (FIT, of("lightning", "Trainer.fit", "Loop.advance"), FIT)
    calls = [blocked(world(3), 3, name, line=4) for name in ("barrier", "broadcast", "barrier")]
    ranks = [
        rank(n, world(3), made, threads=main_thread(*reversed(inside), frame(4)))
        for n, (made, inside) in enumerate(zip(calls, stacks, strict=True))
    ]
    (found,) = diagnose(job(*ranks), THRESHOLDS)
    assert found.headline == (
        "Rank 1 entered broadcast in Loop.advance as collective #3 of group default_pg, but ranks "
        "0 and 2 entered barrier in Strategy.reduce, both in Trainer.fit of lightning, called at "
        "train.py:4."
    )


CALLED = Site("/home/ada/train.py", 9, "main", call=PackageCall("lightning", "Trainer.fit", "run"))


def test_terminal_page_and_report_show_what_the_line_calls() -> None:
    report: Any = build_report(replace(EVIDENCE, verdicts=(replace(VERDICT, site=CALLED),)))
    assert report["verdict"]["site"]["call"] == {
        "package": "lightning",
        "function": "Trainer.fit",
        "inner": "run",
    }
    told = " ".join(" ".join(format_verdict(report)).split())
    assert "/home/ada/train.py:9 in main, calling Trainer.fit of lightning" in told
    assert ', calling <span class="at">Trainer.fit of lightning</span>' in render_page(report)


def test_a_site_that_calls_nothing_of_a_package_is_reported_as_ever() -> None:
    report: Any = build_report(EVIDENCE)
    assert "call" not in report["verdict"]["site"]
    assert ", calling" not in render_page(report)


def test_a_call_goes_from_node_to_node_with_its_site() -> None:
    sent = codec.loads(Site, codec.dumps(CALLED), 1000)
    assert sent == CALLED
    assert sent.call == CALLED.call
