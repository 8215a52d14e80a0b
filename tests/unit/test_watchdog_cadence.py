"""What ``auto`` learns from a job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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


def test_a_job_that_nothing_is_known_of_gets_the_lowest_bounds() -> None:
    found = Cadence(None, None).thresholds()
    assert (found.suspect_after_s, found.hang_after_s) == (10, 300)


def test_a_busy_job_is_suspected_soon() -> None:
    job = Job(Cadence(None, None))
    for _ in range(400):
        job.step(0.3)
    assert job.cadence.thresholds().suspect_after_s == 10


def test_a_job_of_long_steps_is_given_time() -> None:
    job = Job(Cadence(None, None))
    for _ in range(40):
        job.step(5)
    assert job.cadence.typical_gap_s == 5
    assert job.cadence.thresholds().suspect_after_s == 40


def test_patience_has_an_upper_bound() -> None:
    job = Job(Cadence(None, None))
    for _ in range(40):
        job.step(60)
    assert job.cadence.thresholds().suspect_after_s == 120


def test_one_long_pause_among_many_short_ones_is_not_typical() -> None:
    job = Job(Cadence(None, None))
    for _ in range(600):
        job.step(0.5)
    job.step(100)
    for _ in range(200):
        job.step(0.5)
    assert job.cadence.typical_gap_s < 1


def test_a_wait_that_recovered_is_never_suspected_again() -> None:
    job = Job(Cadence(None, None))
    job.wait(60)
    found = job.cadence.thresholds()
    assert found.suspect_after_s == 90
    assert found.hang_after_s == 300


def test_a_very_long_wait_that_recovered_raises_the_hang_as_well() -> None:
    job = Job(Cadence(None, None))
    job.wait(400)
    found = job.cadence.thresholds()
    assert found.suspect_after_s == 600
    assert found.hang_after_s == 1200


def test_a_hang_is_at_least_twice_as_long_as_a_suspicion() -> None:
    job = Job(Cadence(None, None))
    job.wait(2000)
    found = job.cadence.thresholds()
    assert found.suspect_after_s == 3000
    assert found.hang_after_s == 6000


def test_a_rank_that_ended_while_it_waited_has_not_recovered() -> None:
    job = Job(Cadence(None, None))
    job.wait(60, recovers=False)
    assert job.cadence.learnt.longest_recovered_s == 0


def test_what_was_waited_for_before_a_restart_has_not_recovered() -> None:
    cadence = Cadence(None, None)
    cadence.observe(100, moved=True, waits={0: 40.0})
    cadence.forget_waits()
    cadence.observe(101, moved=True, waits={0: None})
    assert cadence.learnt.longest_recovered_s == 0


def test_a_new_wait_of_the_same_rank_means_that_the_old_one_recovered() -> None:
    cadence = Cadence(None, None)
    cadence.observe(100, moved=True, waits={0: 40.0})
    cadence.observe(101, moved=True, waits={0: 100.5})
    assert cadence.learnt.longest_recovered_s == 61


def test_a_shorter_wait_that_recovered_later_does_not_take_patience_away() -> None:
    job = Job(Cadence(None, None))
    job.wait(200)
    job.wait(20)
    assert job.cadence.thresholds().suspect_after_s == 300


def test_the_time_that_a_restart_takes_is_no_gap_of_the_job() -> None:
    job = Job(Cadence(None, None))
    job.step(1)
    job.cadence.forget_waits()
    job.step(400)
    assert job.cadence.typical_gap_s == 0


def test_half_an_hour_is_a_hang_whatever_has_recovered_where_the_user_sets_the_suspicion() -> None:
    job = Job(Cadence(10, None))
    job.wait(1000)
    found = job.cadence.thresholds()
    assert (found.suspect_after_s, found.hang_after_s) == (10, 1800)


def test_what_the_user_sets_stays() -> None:
    job = Job(Cadence(5, 20))
    job.wait(400)
    found = job.cadence.thresholds()
    assert (found.suspect_after_s, found.hang_after_s) == (5, 20)


def test_a_hang_set_by_the_user_bounds_the_learnt_suspicion() -> None:
    job = Job(Cadence(None, 30))
    job.wait(400)
    found = job.cadence.thresholds()
    assert (found.suspect_after_s, found.hang_after_s) == (30, 30)


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
