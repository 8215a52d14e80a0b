"""Why a rank takes longer than another one, from what both do in the same seconds."""

from __future__ import annotations

import pytest

from hangwatch.efficiency.reasons import explain
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Reason
from hangwatch.model.profile import Profile, StackSamples
from hangwatch.model.report import Why
from hangwatch.model.snapshot import Frame

TRAIN = "/home/ada/train.py"
DATA = "/home/ada/data.py"
TORCH = "/v/lib/python3.11/site-packages/torch"
LIB = "/usr/lib/python3.11"
LINES = (
    "for batch in loader:",
    "    loss = model(batch)",
    "    loss.backward()",
    "    log(loss)",
    "    gc.collect()",
    "    torch.save(model, 'x')",
    "    dist.all_reduce(loss)",
)
SOURCES = {TRAIN: "\n".join(LINES)}
LOADER = Frame(f"{TORCH}/utils/data/dataloader.py", 700, "__next__")
C10D = Frame(f"{TORCH}/distributed/distributed_c10d.py", 3000, "all_reduce")
AUTOGRAD = Frame(f"{TORCH}/autograd/graph.py", 800, "_engine_run_backward")
QUEUE = Frame(f"{LIB}/queue.py", 171, "Queue.get")
WORKER = Frame(f"{TORCH}/utils/data/_utils/worker.py", 300, "_worker_loop")
FETCH = Frame(f"{TORCH}/utils/data/_utils/fetch.py", 50, "fetch")
PID = {2: 102, 0: 100}


def line(number: int, *inside: Frame) -> tuple[Frame, ...]:
    """A stack of the training thread at a line of its program."""
    return (*inside, Frame(TRAIN, number, "main"))


def profile(
    rank: int,
    *at: tuple[int, tuple[Frame, ...]],
    others: tuple[StackSamples, ...] = (),
    **more: float,
) -> Profile:
    """What the training thread of a rank was at, and how often."""
    pid = PID[rank]
    main = (StackSamples(pid, pid, "MainThread", frames, count) for count, frames in at)
    return Profile(rank, pid, pid, (*main, *others), **more)


def site(number: int) -> Site:
    return Site(TRAIN, number, "main", LINES[number - 1].strip())


WAITS = line(3, AUTOGRAD)
LIKE = profile(0, (20, line(2)), (75, WAITS), (5, line(7, C10D)))


def test_the_line_that_only_the_slow_rank_is_at() -> None:
    slow = profile(2, (20, line(2)), (25, WAITS), (55, line(4)))
    why = explain(slow, LIKE, 0.5, SOURCES)
    assert (why.reason, why.site) == (Reason.USER_CODE, site(4))
    assert (why.share, why.like, why.like_share) == (0.55, 0, 0.0)
    assert why.waits_at is None


def test_the_same_line_for_longer() -> None:
    slow = profile(2, (70, line(2)), (30, WAITS))
    why = explain(slow, LIKE, 0.5, SOURCES)
    assert (why.reason, why.site) == (Reason.UNEVEN_WORK, site(2))
    assert (why.share, why.like_share) == (0.7, 0.2)


def test_much_longer_is_the_same_line_all_the_same() -> None:
    slow = profile(2, (135, line(2)), (115, WAITS))
    like = profile(0, (13, line(2)), (237, WAITS))
    assert explain(slow, like, 0.5, SOURCES).reason is Reason.UNEVEN_WORK


def test_who_returns_at_once_does_not_do_the_same() -> None:
    slow = profile(2, (110, line(4)), (140, WAITS))
    like = profile(0, (2, line(4)), (248, WAITS))
    assert explain(slow, like, 0.5, SOURCES).reason is Reason.USER_CODE


def test_waiting_for_others_is_no_reason() -> None:
    slow = profile(2, (20, line(2)), (20, WAITS), (60, line(7, C10D)))
    assert explain(slow, LIKE, 0.5, SOURCES).reason is Reason.UNKNOWN


def test_of_a_line_that_all_share_the_one_that_leads_to_it() -> None:
    helper = Frame(DATA, 3, "wait")
    slow = profile(2, (20, line(2, helper)), (60, line(4, helper)), (20, WAITS))
    like = profile(0, (20, line(2, helper)), (80, WAITS))
    why = explain(slow, like, 0.5, SOURCES)
    assert (why.reason, why.site) == (Reason.USER_CODE, site(4))
    assert (why.share, why.like_share) == (0.6, 0.0)


def test_the_share_is_that_of_the_line_that_is_told() -> None:
    helper, other = Frame(DATA, 3, "wait"), Frame(DATA, 9, "write")
    slow = profile(2, (20, line(2, helper)), (45, line(4, helper)), (15, line(4, other)))
    like = profile(0, (20, line(2, helper)), (80, line(7, C10D)))
    why = explain(slow, like, 0.5, SOURCES)
    assert (why.site, why.share) == (site(4), 0.75)


def test_lines_of_one_function_are_told_by_its_call() -> None:
    inside = [(15, line(2, Frame(DATA, number, "f"))) for number in range(1, 5)]
    slow = profile(2, *inside, (40, WAITS))
    like = profile(0, *((5, stack) for _, stack in inside), (80, WAITS))
    why = explain(slow, like, 0.4, SOURCES)
    assert (why.reason, why.site) == (Reason.UNEVEN_WORK, site(2))
    assert (why.share, why.like_share) == pytest.approx((0.6, 0.2))


def test_stages_of_a_pipeline_compute_their_gradients_at_lines_of_their_own() -> None:
    slow = profile(2, (20, line(2)), (60, WAITS), (20, line(7, C10D)))
    like = profile(0, (20, line(2)), (15, line(6, AUTOGRAD)), (65, line(7, C10D)))
    why = explain(slow, like, 0.4, SOURCES)
    assert (why.reason, why.site, why.share) == (Reason.UNEVEN_WORK, site(3), 0.6)
    assert (why.like_site, why.like_share) == (site(6), 0.15)


def test_gradients_of_a_loss_that_others_do_not_have_are_no_uneven_work() -> None:
    own, both = line(6, AUTOGRAD), WAITS
    slow = profile(2, (20, line(2)), (20, both), (50, own), (10, line(7, C10D)))
    like = profile(0, (20, line(2)), (20, both), (60, line(7, C10D)))
    why = explain(slow, like, 0.4, SOURCES)
    assert (why.reason, why.site, why.like_site) == (Reason.USER_CODE, site(6), None)
    none = profile(0, (20, line(2)), (80, line(7, C10D)))
    assert explain(slow, none, 0.4, SOURCES).reason is Reason.USER_CODE


def test_what_is_waited_for_in_backward_is_no_work() -> None:
    """Both are in it for as long; the slow one works there, and the other one waits."""
    slow = profile(2, (20, line(2)), (80, WAITS), waits=0.05)
    like = profile(0, (10, line(2)), (85, WAITS), (5, line(7, C10D)), waits=0.5)
    why = explain(slow, like, 0.45, SOURCES)
    assert (why.reason, why.site) == (Reason.UNEVEN_WORK, site(3))
    assert (why.share, why.like_share) == pytest.approx((0.75, 0.4))


def test_many_lines_for_a_little_longer() -> None:
    other = [(10, (Frame(DATA, number, "f"),)) for number in range(1, 9)]
    slow = profile(2, (20, line(2)), *other)
    why = explain(slow, LIKE, 0.5, SOURCES)
    assert (why.reason, why.site) == (Reason.UNEVEN_WORK, None)


@pytest.mark.parametrize(
    ("stack", "reason"),
    [
        (line(1, LOADER), Reason.DATA_LOADING),
        (line(5), Reason.GARBAGE_COLLECTION),
        (line(6, Frame(f"{TORCH}/serialization.py", 900, "save")), Reason.CHECKPOINT_IO),
    ],
)
def test_the_reason_by_what_the_line_calls(stack: tuple[Frame, ...], reason: Reason) -> None:
    slow = profile(2, (20, line(2)), (20, WAITS), (60, stack))
    why = explain(slow, LIKE, 0.5, SOURCES)
    assert (why.reason, why.site) == (reason, site(stack[-1].line))


def test_a_data_worker_that_cannot_keep_up_is_told_by_its_own_line() -> None:
    def workers(reads: int) -> tuple[StackSamples, ...]:
        common = Frame(DATA, 3, "open"), Frame(DATA, 8, "decode"), FETCH, *line(1)
        decode = Frame(DATA, 9, "decode"), FETCH, *line(1)
        idle = Frame(f"{LIB}/queue.py", 3, "get"), WORKER, *line(1)
        return (
            StackSamples(555, 555, "MainThread", common, 10),
            StackSamples(555, 555, "MainThread", decode, reads),
            StackSamples(555, 555, "MainThread", idle, 90 - reads),
            StackSamples(556, 556, "MainThread", line(4), 100),
        )

    slow = profile(2, (20, line(2)), (80, line(1, LOADER)), others=workers(85))
    like = profile(0, (20, line(2)), (80, WAITS), others=workers(20))
    why = explain(slow, like, 0.5, SOURCES)
    assert why.reason is Reason.DATA_LOADING
    assert why.site == Site(DATA, 9, "decode")
    assert why.waits_at == site(1)
    alike = explain(slow, profile(0, (20, line(2)), (80, WAITS), others=workers(85)), 0.5, SOURCES)
    assert (alike.reason, alike.site, alike.waits_at) == (Reason.DATA_LOADING, site(1), None)


def test_a_thread_that_is_waited_for_is_told_by_its_line() -> None:
    def reader(rank: int, reads: int, puts: int) -> tuple[StackSamples, ...]:
        read, put = Frame(DATA, 20, "read"), Frame(DATA, 21, "read")
        pid = PID[rank]
        return (
            StackSamples(pid, pid + 5, "reader", (read,), reads),
            StackSamples(pid, pid + 5, "reader", (QUEUE, put), puts),
        )

    slow = profile(2, (20, line(2)), (80, line(1, QUEUE)), others=reader(2, 95, 5))
    like = profile(0, (20, line(2)), (80, WAITS), others=reader(0, 20, 80))
    why = explain(slow, like, 0.5, SOURCES)
    assert why.site == Site(DATA, 20, "read")
    assert why.waits_at == site(1)
    assert why.thread == "reader"
    alone = profile(2, (20, line(2)), (80, line(1, QUEUE)))
    assert explain(alone, like, 0.5, SOURCES).site == site(1)


def test_a_thread_that_other_ranks_have_too_says_more_than_one_that_they_do_not_have() -> None:
    def threads(rank: int, reads: int) -> list[StackSamples]:
        pid = PID[rank]
        read, put = Frame(DATA, 20, "read"), Frame(DATA, 21, "read")
        return [
            StackSamples(pid, pid + 5, "", (read,), reads),
            StackSamples(pid, pid + 5, "", (QUEUE, put), 100 - reads),
        ]

    monitor = StackSamples(102, 109, "monitor", (Frame(DATA, 40, "monitor"),), 100)
    slow = profile(2, (20, line(2)), (80, line(1, QUEUE)), others=(monitor, *threads(2, 95)))
    like = profile(0, (20, line(2)), (80, WAITS), others=tuple(threads(0, 20)))
    why = explain(slow, like, 0.5, SOURCES)
    assert (why.site, why.thread) == (Site(DATA, 20, "read"), "without a name")
    alone = profile(2, (20, line(2)), (80, line(1, QUEUE)), others=(monitor,))
    assert explain(alone, like, 0.5, SOURCES).thread == "monitor"


def test_who_has_more_to_do_waits_longer_for_a_cpu_that_all_wait_for() -> None:
    slow = profile(2, (70, line(2)), (30, WAITS), cpu=0.3, delay=0.6)
    like = profile(0, (20, line(2)), (80, WAITS), cpu=0.13, delay=0.22)
    assert explain(slow, like, 0.5, SOURCES).reason is Reason.UNEVEN_WORK
    free = profile(0, (20, line(2)), (80, WAITS), cpu=0.01, delay=0.02)
    assert explain(slow, free, 0.5, SOURCES).reason is Reason.CPU_CONTENTION


def test_what_others_need_meanwhile_for_something_else_costs_nothing() -> None:
    slow = profile(2, (50, line(2)), (20, line(1, QUEUE)), (30, line(7, C10D)))
    like = profile(0, (20, line(2)), (70, line(1, QUEUE)), (10, line(7, C10D)))
    assert explain(slow, like, 0.4, SOURCES).hidden
    for_ranks = profile(0, (20, line(2)), (20, line(1, QUEUE)), (60, line(7, C10D)))
    assert not explain(slow, for_ranks, 0.4, SOURCES).hidden


def test_a_rank_that_waits_for_a_cpu() -> None:
    slow = profile(2, (70, line(2)), (30, WAITS), delay=0.4)
    assert explain(slow, LIKE, 0.5, SOURCES).reason is Reason.CPU_CONTENTION
    limited = profile(2, (70, line(2)), (30, WAITS), delay=0.4, throttled=0.38)
    assert explain(limited, LIKE, 0.5, SOURCES) == Why(Reason.CPU_THROTTLED, like=0)
    together = profile(0, (20, line(2)), (80, WAITS), throttled=0.38)
    assert explain(limited, together, 0.5, SOURCES).reason is Reason.CPU_CONTENTION
    both = profile(0, (20, line(2)), (80, WAITS), delay=0.38)
    assert explain(slow, both, 0.5, SOURCES).reason is Reason.UNEVEN_WORK


def test_nothing_that_takes_longer_gives_no_reason() -> None:
    slow = profile(2, (20, line(2)), (80, WAITS))
    assert explain(slow, LIKE, 0.5, SOURCES).site is None
