"""What ``auto`` learns from a job."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangwatch.model.snapshot import Thresholds
from hangwatch.watchdog.cadence import Cadence


class Job:
    """A job of one rank, watched twice a second by a clock of its own."""

    def __init__(self, cadence: Cadence) -> None:
        self.cadence = cadence
        self.now_s = 1000.0

    def step(self, gap_s: float) -> None:
        """No collective for gap_s, then one."""
        end = self.now_s + gap_s
        while self.now_s + 0.5 < end:
            self.now_s += 0.5
            self.cadence.observe(self.now_s, moved=False, waits={0: None})
        self.now_s = end
        self.cadence.observe(self.now_s, moved=True, waits={0: None})

    def wait(self, wait_s: float, *, recovers: bool = True) -> None:
        """Rank 0 waits for so long, and goes on or ends."""
        since = self.now_s
        while self.now_s < since + wait_s:
            self.now_s += 0.5
            self.cadence.observe(self.now_s, moved=False, waits={0: since})
        self.cadence.observe(self.now_s, moved=recovers, waits={0: None} if recovers else {})

    def restart(self) -> None:
        """The ranks are started once more."""
        self.cadence.forget_waits()


Act = Callable[[Job], object]


def step(gap_s: float, times: int = 1) -> Act:
    def steps(job: Job) -> None:
        for _ in range(times):
            job.step(gap_s)

    return steps


def wait(wait_s: float, *, recovers: bool = True) -> Act:
    return lambda job: job.wait(wait_s, recovers=recovers)


@pytest.mark.parametrize(
    ("cadence", "acts", "thresholds"),
    [
        pytest.param(Cadence(None, None), [], (10, 300), id="nothing is known"),
        pytest.param(Cadence(None, None), [step(0.3, 400)], (10, 300), id="a busy job"),
        pytest.param(Cadence(None, None), [step(5, 40)], (40, 300), id="long steps"),
        pytest.param(Cadence(None, None), [step(60, 40)], (120, 300), id="patience is bounded"),
        pytest.param(Cadence(None, None), [wait(60)], (90, 300), id="a wait that recovered"),
        pytest.param(Cadence(None, None), [wait(400)], (600, 1200), id="a very long one"),
        pytest.param(Cadence(None, None), [wait(2000)], (3000, 6000), id="twice the suspicion"),
        pytest.param(Cadence(None, None), [wait(200), wait(20)], (300, 600), id="a shorter one"),
        pytest.param(Cadence(10, None), [wait(1000)], (10, 1800), id="half an hour is a hang"),
        pytest.param(Cadence(5, 20), [wait(400)], (5, 20), id="what the user sets stays"),
        pytest.param(Cadence(None, 30), [wait(400)], (30, 30), id="a hang bounds the suspicion"),
    ],
)
def test_patience_is_learnt_within_bounds(
    cadence: Cadence, acts: list[Act], thresholds: tuple[float, float]
) -> None:
    job = Job(cadence)
    for act in acts:
        act(job)
    assert cadence.thresholds() == Thresholds(*thresholds)


@pytest.mark.parametrize(
    ("acts", "least_s", "most_s"),
    [
        pytest.param([step(5, 40)], 5, 5, id="long steps"),
        pytest.param([step(0.5, 600), step(100), step(0.5, 200)], 0, 1, id="one long pause"),
        pytest.param([step(1), Job.restart, step(400)], 0, 0, id="a restart is no gap"),
    ],
)
def test_the_typical_gap_is_that_of_most_half_minutes(
    acts: list[Act], least_s: float, most_s: float
) -> None:
    job = Job(Cadence(None, None))
    for act in acts:
        act(job)
    assert least_s <= job.cadence.typical_gap_s <= most_s


def test_a_rank_that_ended_while_it_waited_has_not_recovered() -> None:
    job = Job(Cadence(None, None))
    job.wait(60, recovers=False)
    assert job.cadence.learnt.longest_recovered_s == 0


@pytest.mark.parametrize(
    ("restarted", "waits", "longest_s"),
    [(True, None, 0), (False, 100.5, 61)],
    ids=["before a restart", "a new wait of the same rank"],
)
def test_an_old_wait_has_recovered_unless_the_ranks_were_restarted(
    waits: float | None, longest_s: float, *, restarted: bool
) -> None:
    cadence = Cadence(None, None)
    cadence.observe(100, moved=True, waits={0: 40.0})
    if restarted:
        cadence.forget_waits()
    cadence.observe(101, moved=True, waits={0: waits})
    assert cadence.learnt.longest_recovered_s == longest_s


def test_a_watchdog_that_takes_over_goes_on_from_what_was_learnt() -> None:
    job = Job(Cadence(None, None))
    for _ in range(40):
        job.step(5)
    job.wait(60)
    successor = Cadence(None, None)
    successor.learnt = job.cadence.learnt
    assert successor.learnt.longest_recovered_s >= 60
    assert successor.thresholds().suspect_after_s >= 90


@given(st.lists(st.tuples(st.floats(0, 5000), st.booleans()), max_size=30))
def test_thresholds_stay_in_their_bounds(history: list[tuple[float, bool]]) -> None:
    cadence = Cadence(None, None)
    now_s = 0.0
    for gap_s, moved in history:
        now_s += gap_s
        cadence.observe(now_s, moved=moved, waits={0: None if moved else now_s - gap_s})
    found = cadence.thresholds()
    assert found.suspect_after_s >= 10
    assert found.hang_after_s >= 2 * found.suspect_after_s
    assert found.suspect_after_s >= 1.5 * cadence.learnt.longest_recovered_s
