"""Ranks that leave a bucket of gradients out, by no_sync() or for want of a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from snapshots import (
    BACKWARD,
    SCRIPT,
    THRESHOLDS,
    W,
    blocked,
    exited,
    frame,
    job,
    killed,
    main_thread,
    only,
    op,
    raised,
    rank,
    site,
    source,
    world,
)

from hangwatch.diagnosis import diagnose
from hangwatch.model.kinds import Certainty, OpState, What
from hangwatch.model.snapshot import Mark

if TYPE_CHECKING:
    from hangwatch.model.snapshot import RankSnapshot
    from hangwatch.model.verdict import RootCause

TEXT = """
import torch
from torch.nn.parallel import DistributedDataParallel

class Net(torch.nn.Module):
    def forward(self, x, extra):
        y = self.body(x)
        if extra:
            y = y + self.head(y)
        return y

model = DistributedDataParallel(Net())
for step in range(100):
    loss = model(x, extra)
    with model.no_sync():
        loss.backward()
    loss.backward()
    dist.barrier()
"""
BRANCH, NO_SYNC_AT, BACKWARD_AT, BARRIER = 7, 14, 16, 17


def no_sync(count: int, line: int = NO_SYNC_AT) -> dict[str, Any]:
    """Fields of a rank that has kept gradients local so often."""
    return {"marks": (Mark("no_sync", "", count, 5.0, site(line)),) if count else ()}


def in_bucket(number: int, **fields: Any) -> RankSnapshot:
    bucket = op(W, 9, state=OpState.ISSUED, source="flight")
    before, stack = op(W, 8, "barrier", line=BARRIER), main_thread(*BACKWARD, frame(BACKWARD_AT))
    return rank(number, W, before, bucket, flight=True, threads=stack, **fields)


def at_barrier(number: int, **fields: Any) -> RankSnapshot:
    before, now = op(W, 8, "barrier", line=BARRIER), blocked(W, 9, "barrier", line=BARRIER)
    return rank(number, W, before, now, flight=True, **fields)


def cause(*ranks: RankSnapshot) -> RootCause:
    found = only(job(*ranks, **source(TEXT))).cause
    assert found is not None
    return found


def test_a_rank_that_was_in_no_sync_once_more_left_the_bucket_out() -> None:
    ranks = [in_bucket(number, **no_sync(6)) for number in (0, 1, 3)]
    found = cause(*ranks, at_barrier(2, **no_sync(7)))
    assert (found.what, found.certainty) == (What.NO_SYNC, Certainty.LIKELY)
    assert found.site is not None
    assert (found.site.file, found.site.line) == (SCRIPT, NO_SYNC_AT)
    assert found.why == (
        "Rank 2 kept gradients local here (no_sync) 7 times, and ranks 0, 1 and 3 6 times."
    )


def test_a_rank_that_alone_averages_was_in_no_sync_less_often() -> None:
    ranks = [at_barrier(number, **no_sync(1)) for number in (0, 1, 3)]
    found = cause(*ranks, in_bucket(2))
    assert (found.what, found.why[-22:]) == (What.NO_SYNC, "ranks 0, 1 and 3 once.")


@pytest.mark.parametrize("counts", [(6, 6, 6, 6), (6, 5, 6, 7), (6, 6, 6, 5)])
def test_counts_that_do_not_explain_it_leave_no_sync_possible(counts: tuple[int, ...]) -> None:
    ranks = [in_bucket(number, **no_sync(counts[number])) for number in (0, 1, 2)]
    found = cause(*ranks, at_barrier(3, **no_sync(counts[3])))
    assert (found.what, found.certainty) == (What.NO_SYNC, Certainty.POSSIBLE)
    assert [other.what for other in found.others] == [What.UNUSED_PARAMETER]


def test_where_nothing_leads_past_backward_a_parameter_may_have_had_no_gradient() -> None:
    found = cause(*(in_bucket(number) for number in (0, 1, 3)), at_barrier(2))
    assert (found.what, found.certainty) == (What.UNUSED_PARAMETER, Certainty.POSSIBLE)
    assert found.site is not None
    assert found.site.line == BRANCH


def test_a_rank_that_has_ended_is_not_said_to_lack_a_gradient() -> None:
    over = rank(2, W, op(W, 8, "barrier", line=BARRIER), **exited())
    found = cause(*(in_bucket(number) for number in (0, 1, 3)), over)
    assert found.what is not What.UNUSED_PARAMETER


def test_torch_itself_tells_that_a_parameter_had_no_gradient() -> None:
    said = "Expected to have finished reduction in the prior iteration before starting a new one."
    died = rank(2, W, op(W, 8, "barrier", line=BARRIER), **raised("RuntimeError", said))
    found = cause(*(in_bucket(number) for number in (0, 1, 3)), died)
    assert (found.what, found.certainty) == (What.UNUSED_PARAMETER, Certainty.LIKELY)


@pytest.mark.parametrize(("counts", "culprits"), [((6, 7, 6), (1,)), ((6, 6, 6), (1, 2))])
def test_of_ranks_that_gloo_aborted_the_one_with_other_counts_is_named(
    counts: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    """Of rank 2 only its counters tell that it is there as well."""
    group, ended = world(3), killed(15, 7.0, terminated_by_launcher=True)
    before, there = op(group, 8, line=BARRIER), blocked(group, 9, line=BARRIER)
    aborted = rank(1, group, before, there, **killed(6), **no_sync(counts[1]))
    others = (
        rank(number, group, before, enqueued=reached, **ended, **no_sync(counts[number]))
        for number, reached in ((0, 8), (2, 9))
    )
    found = diagnose(job(*others, aborted, ended=True, exit_code=1, **source(TEXT)), THRESHOLDS)
    assert found[0].culprits == culprits
