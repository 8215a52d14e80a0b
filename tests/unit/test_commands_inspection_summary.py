"""Where ranks are, in words: what each does, and who is not where the others are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from incident import BACKWARD, LOADING, STALLED, TORCH, TRAIN, WAITING, thread

from hangwatch.commands.inspection.summary import (
    ALL_WAIT,
    Member,
    Where,
    by_stack,
    doing,
    sentences,
)
from hangwatch.commands.runs import BlockingCall
from hangwatch.model.kinds import Phase
from hangwatch.model.snapshot import Child, Frame, ProcessState, RankSnapshot

MAIN = Frame(TRAIN, 9, "main")
C10D = f"{TORCH}/distributed/distributed_c10d.py"
LOGGER = Frame(f"{TORCH}/distributed/c10d_logger.py", 83, "_exception_logger.<locals>.wrapper")
ASLEEP = ProcessState(alive=True, state="S", wchan="futex_do_wait")


def snapshot(
    rank: int, *frames: Frame, state: ProcessState = ASLEEP, children: tuple[Child, ...] = ()
) -> RankSnapshot:
    threads = (thread(4000 + rank, frames),) if frames else None
    return RankSnapshot(
        rank, "node-a", 4000 + rank, Phase.RUNNING, state, threads=threads, children=children
    )


def says(one: RankSnapshot, call: BlockingCall | None = None, **sources: str) -> str:
    return doing(one, call, {TRAIN: sources["text"]} if sources else {}).one


def member(one: RankSnapshot, call: BlockingCall | None = None, waits_s: float = 0.0) -> Member:
    return Member(one, doing(one, call, {}), waits_s)


def members(*snapshots: RankSnapshot) -> list[Member]:
    return [member(one) for one in snapshots]


def reducing(rank: int) -> RankSnapshot:
    return snapshot(rank, Frame(C10D, 3252, "all_reduce"), LOGGER, MAIN)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ((Frame(C10D, 1, "all_reduce"), LOGGER, MAIN), "waits in all_reduce at train.py:9"),
        (
            (Frame(C10D, 1, "all_gather"), LOGGER, Frame(C10D, 2, "all_gather_object"), MAIN),
            "waits in all_gather_object at train.py:9",
        ),
        (
            (
                Frame(f"{TORCH}/distributed/rendezvous.py", 5, "_create_c10d_store"),
                Frame(C10D, 7, "init_process_group"),
                MAIN,
            ),
            "waits in init_process_group at train.py:9",
        ),
        (
            (LOGGER, Frame(f"{TORCH}/distributed/utils.py", 3, "_sync_module_states"), MAIN),
            "waits in _sync_module_states of torch.distributed at train.py:9",
        ),
        (WAITING, "is in backward at train.py:9, in which gradients are reduced"),
        ((MAIN,), "is in its own code at train.py:9"),
        (
            (Frame(f"{TORCH}/_inductor/compile_fx.py", 1, "bw_compiler"), *WAITING[:-1], MAIN),
            "is compiling with torch.compile (main, train.py:9)",
        ),
    ],
)
def test_a_stack_tells_what_a_rank_waits_in(frames: tuple[Frame, ...], said: str) -> None:
    assert says(snapshot(0, *frames)) == said


def test_a_page_knows_better_than_a_stack() -> None:
    call = BlockingCall("all_reduce #46", "default_pg", BACKWARD)
    said = says(snapshot(0, *WAITING), call)
    assert said == "waits in all_reduce #46 of default_pg at train.py:9"


def test_waiting_for_work_has_no_frame_but_a_line() -> None:
    text = "\n" * 8 + "work.wait()\n"
    assert doing(snapshot(0, MAIN), None, {TRAIN: text}).where is Where.WAITS
    assert doing(snapshot(0, MAIN), None, {}).where is Where.ELSEWHERE


def test_a_rank_that_computes_is_not_said_to_wait() -> None:
    running = ProcessState(alive=True, state="R")
    assert doing(snapshot(0, *WAITING, state=running), None, {}).where is Where.ELSEWHERE
    assert says(snapshot(0, MAIN, state=running)) == "is running at train.py:9"


def test_without_a_stack_the_kernel_says_where_it_sleeps() -> None:
    said = says(snapshot(0))
    assert said == "is asleep in the kernel's futex_do_wait; no stack could be taken"


def test_a_data_worker_explains_its_rank() -> None:
    worker = Child(5002, "python train.py", ASLEEP, (thread(5002, STALLED),))
    one = snapshot(2, *LOADING, children=(worker,))
    assert says(one) == "is loading data (worker pid 5002 in __getitem__, train.py:4)"
    assert member(one).worker is worker


def test_the_one_that_is_elsewhere_is_named_first() -> None:
    said = list(sentences(members(reducing(0), reducing(1), snapshot(2, MAIN), reducing(3))))
    assert said == [
        "Rank 2 is not where the others are: it is in its own code at train.py:9.",
        "Ranks 0, 1 and 3 wait in all_reduce at train.py:9.",
    ]


def test_most_ranks_being_elsewhere_accuses_nobody() -> None:
    said = list(sentences(members(reducing(0), snapshot(1, MAIN), snapshot(2, MAIN))))
    assert said == [
        "Ranks 1 and 2 are in their own code at train.py:9.",
        "Rank 0 waits in all_reduce at train.py:9.",
    ]


def test_different_calls_are_told_apart_the_rarer_first() -> None:
    gathering = snapshot(1, Frame(C10D, 5, "all_gather"), LOGGER, MAIN)
    said = list(sentences(members(reducing(0), gathering, reducing(2))))
    assert said[0] == "Rank 1 waits in all_gather at train.py:9."


def test_all_in_one_place_point_elsewhere() -> None:
    said = list(sentences(members(reducing(0), reducing(1))))
    assert said == ["All 2 wait in all_reduce at train.py:9.", ALL_WAIT]
    assert list(sentences(members(snapshot(0, MAIN), snapshot(1, MAIN)))) == [
        "All 2 are in their own code at train.py:9."
    ]


def test_a_stopped_rank_comes_before_all_others() -> None:
    stopped = snapshot(3, Frame(C10D, 1, "all_reduce"), MAIN, state=replace(ASLEEP, state="T"))
    first, *_ = sentences(members(reducing(0), snapshot(1, MAIN), stopped))
    assert first.startswith("Rank 3 is stopped (SIGSTOP")


def test_a_page_tells_how_long() -> None:
    call = BlockingCall("all_reduce #46", "default_pg", BACKWARD)
    waiting = [member(snapshot(rank, *WAITING), call, 9.0 + rank) for rank in (0, 1)]
    assert next(sentences(waiting)).endswith("of default_pg at train.py:9, for 10 s.")


def test_identical_stacks_are_merged_whatever_the_load_address() -> None:
    native = [
        snapshot(rank, Frame("/lib/libc.so.6", 0, f"0x7f{rank}abc"), Frame(C10D, 1, "barrier"))
        for rank in range(3)
    ]
    stacks = by_stack(members(*native, snapshot(3, MAIN)))
    assert [[one.rank for one in same] for same in stacks] == [[3], [0, 1, 2]]


def test_ten_thousand_ranks_take_a_moment_and_few_words() -> None:
    many = [reducing(rank) for rank in range(10_000)]
    many[77] = snapshot(77, MAIN)
    said = list(sentences(members(*many)))
    assert said[0].startswith("Rank 77 is not where the others are")
    assert said[1] == "Ranks 0-76 and 78-9999 wait in all_reduce at train.py:9."
