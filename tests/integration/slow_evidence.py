"""A straggler as evidence: rank 2 of four, which reads at a line of its own."""

from __future__ import annotations

from hangwatch.model.calls import Site
from hangwatch.model.kinds import Reason
from hangwatch.model.profile import LineShare, Profile, StackSamples, ThreadShares
from hangwatch.model.report import RunInfo, Straggler, StragglerEvidence, Waits, Why
from hangwatch.model.snapshot import Frame

TRAIN = "/home/ada/train.py"
SOURCE = "import torch\n\nfor batch in loader:\n    read(batch)\n    loss.backward()\n"
LINE = Site(TRAIN, 4, "main", "read(batch)")
WHY = Why(Reason.USER_CODE, LINE, 0.55, 0, 0.0)
STRAGGLER = Straggler((2,), 0.344, 30.0, 120.0, WHY)
MOMENTS = 600


def _samples(pid: int, *at: tuple[int, int]) -> tuple[StackSamples, ...]:
    return tuple(
        StackSamples(pid, pid, "MainThread", (Frame(TRAIN, line, "main"),), count)
        for line, count in at
    )


def _waits() -> Waits:
    """Three moments in which all work, then two in which all wait for rank 2, again and again."""
    everyone = frozenset(range(4))
    held = tuple(number % 5 > 2 for number in range(MOMENTS))
    return Waits(
        tuple(range(4)),
        tuple(60 + number / 10 for number in range(MOMENTS)),
        tuple(frozenset({2}) if one else everyone for one in held),
        held,
    )


EVIDENCE = StragglerEvidence(
    run=RunInfo("night-7", ("python", "train.py", "--name=<b>"), "2026-01-02T03:02:00+00:00"),
    straggler=STRAGGLER,
    detected_at="2026-01-02T03:04:00.000+00:00",
    world_size=4,
    node="node-a",
    pids={rank: 100 + rank for rank in range(4)},
    period_s=0.5,
    waits=_waits(),
    threads=(
        ThreadShares(
            "the thread that trains",
            (
                LineShare(LINE, 0.55, 0.0),
                LineShare(Site(TRAIN, 5, "main", "loss.backward()"), 0.2, 0.2),
                LineShare(None, 0.0, 0.6),
            ),
        ),
    ),
    profiles=(
        Profile(2, 102, 102, _samples(102, (4, 140), (5, 50))),
        Profile(0, 100, 100, _samples(100, (5, 200))),
    ),
    sources={TRAIN: SOURCE},
)
