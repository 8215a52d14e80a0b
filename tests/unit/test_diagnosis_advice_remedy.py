"""What is advised: precise where the facts are known, never beyond them."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from itertools import chain

import pytest
from snapshots import (
    BACKWARD,
    THRESHOLDS,
    W,
    blocked,
    frame,
    job,
    killed,
    main_thread,
    op,
    raised,
    rank,
    source,
)

from hangwatch.diagnosis import diagnose
from hangwatch.diagnosis.advice import facts as known
from hangwatch.diagnosis.advice.facts import Facts, Use
from hangwatch.diagnosis.advice.remedy import Remedy, advice, remedies
from hangwatch.model.kinds import Kind, Phase, Reason
from hangwatch.model.snapshot import Frame, JobSnapshot, RankSnapshot

TABLE = tuple(chain.from_iterable(remedies().values()))
KNOWN = {"call", "awaited", *re.findall(r'"(\w+)"', inspect.getsource(known))}
"""What a text may name."""
SITE = "/usr/lib/python3/site-packages"
OFFICIAL = re.compile(
    r"https://(?:docs\.pytorch\.org|docs\.python\.org|docs\.nvidia\.com|huggingface\.co/docs"
    r"|lightning\.ai/docs|deepspeed\.readthedocs\.io)/[\w./-]+"
)


def said(found: JobSnapshot) -> str:
    return " ".join(diagnose(found, THRESHOLDS)[0].advice)


def library(path: str, *functions: str) -> tuple[Frame, ...]:
    """Frames of a library, innermost first."""
    return tuple(Frame(f"{SITE}/{path}", 7, function) for function in functions)


def in_call(number: int, name: str, line: int, *inside: Frame, seq: int = 5) -> RankSnapshot:
    """A rank that is in a collective which a library made for a line of main()."""
    stack = main_thread(*inside, frame(line), frame(99, "<module>"))
    by_cpp = replace(op(W, 4), site=None, source="flight")
    return rank(number, W, by_cpp, blocked(W, seq, name, line=line), threads=stack)


# --- The table --------------------------------------------------------------------------------


@pytest.mark.parametrize("remedy", TABLE, ids=lambda remedy: remedy.text[:40])
def test_a_row_names_what_can_be_known_and_links_to_official_pages(remedy: Remedy) -> None:
    assert remedy.names <= KNOWN
    assert ("call" in remedy.names) <= bool(remedy.call)
    assert ("awaited" in remedy.names) <= bool(remedy.awaited)
    assert {*remedy.covers} <= {one.topic for one in TABLE} - {remedy.topic}
    assert remedy.text.endswith(".")
    assert len(remedy.text) <= 300
    assert not remedy.link or OFFICIAL.fullmatch(remedy.link)
    assert len(remedy.link) <= 85  # left whole, it fits into a report of 100 columns


@pytest.mark.parametrize("use", [*Use])
def test_there_is_a_row_for_each_use(use: Use) -> None:
    assert any(use in remedy.uses for remedy in TABLE)


@pytest.mark.parametrize("use", [*Use])
@pytest.mark.parametrize("kind", [*Kind])
def test_for_each_use_and_kind_there_is_advice_and_no_more_than_people_read(
    use: Use, kind: Kind
) -> None:
    found = advice(kind, Reason.USER_CODE, Facts(uses=frozenset({use})))
    assert 2 <= len(found) <= 4
    assert not any("{" in text for text in found)


def test_what_is_not_known_is_not_named() -> None:
    facts = Facts(uses=frozenset({Use.ACCELERATE}), calls=("gather_for_metrics",))
    (first, *_) = advice(Kind.SUBSET_ENTERED, Reason.USER_CODE, facts)
    assert first.startswith("Call `gather_for_metrics` on all processes")


# --- What was found ---------------------------------------------------------------------------

BRANCH = """
    from accelerate import Accelerator
    def main():
        loss.backward()
        if accelerator.is_main_process:
            print(accelerator.gather_for_metrics(loss))
        dist.barrier()
    """


def test_the_call_under_a_condition_and_the_condition_are_named() -> None:
    inside = library("accelerate/accelerator.py", "_gpu_gather", "Accelerator.gather_for_metrics")
    alone = in_call(0, "all_gather_into_tensor", 5, *inside)
    others = [in_call(number, "barrier", 6) for number in (1, 2, 3)]
    text = said(job(alone, *others, **source(BRANCH)))
    assert (
        "`gather_for_metrics` depends on `if accelerator.is_main_process` at train.py:4: move it "
        "out, and keep only the print or the write inside, under `accelerator.is_main_process`. "
        "https://huggingface.co/docs/accelerate/basic_tutorials/execution"
    ) in text


def test_what_a_plain_program_called_is_named_where_the_stack_tells() -> None:
    plain = BRANCH.replace("from accelerate import Accelerator", "import torch")
    alone = in_call(
        0,
        "all_gather",
        5,
        *library("torch/distributed/c10d.py", "all_gather", "_log.<locals>.wrapper"),
    )
    others = [in_call(number, "barrier", 6) for number in (1, 2, 3)]
    text = said(job(alone, *others, **source(plain)))
    assert "`all_gather` depends on `if accelerator.is_main_process` at train.py:4" in text


def test_what_a_forward_pass_does_inside_is_not_what_the_program_called() -> None:
    path = "torch/distributed/fsdp/_runtime_utils.py"
    inside = library(path, "state_dict", "gather", "Linear.forward")
    alone = in_call(0, "all_gather_into_tensor", 5, *inside, *library("torch/nn.py", "M.forward"))
    others = [in_call(number, "barrier", 6) for number in (1, 2, 3)]
    text = said(job(alone, *others, **source(BRANCH.replace("accelerate", "fully_shard"))))
    assert "`forward` depends on `if accelerator.is_main_process` at train.py:4" in text
    assert "With FSDP the forward pass itself gathers" in text
    assert "`state_dict`" not in text


LOOP = """
    def main():
        for batch in loader:
            model(batch)
            loss.backward()
        dist.barrier()
    """


@pytest.mark.parametrize(
    ("imports", "says", "never"),
    [
        ("DistributedDataParallel", "with Join([model])", "FSDP"),
        ("fully_shard", "FSDP does not support Join", "Join([model])"),
        ("torch.distributed.pipelining", "All stages have to call step()", "Join([model])"),
    ],
)
def test_who_ran_out_of_batches_is_told_what_its_model_allows(
    imports: str, says: str, never: str
) -> None:
    early = in_call(2, "barrier", 5)
    others = [in_call(number, "all_reduce", 4, *BACKWARD) for number in (0, 1, 3)]
    text = said(job(early, *others, **source(LOOP.replace("model", imports))))
    assert says in text
    assert never not in text


def test_the_loop_that_was_left_is_quoted() -> None:
    early = in_call(2, "barrier", 5)
    others = [in_call(number, "all_reduce", 4, *BACKWARD) for number in (0, 1, 3)]
    text = said(job(early, *others, **source(LOOP)))
    assert text.startswith(
        "Give `for batch in loader` at train.py:2 the same number of iterations on every rank"
    )


def test_a_loop_without_an_end_was_left_by_its_break() -> None:
    endless = LOOP.replace("for batch in loader:", "while True:").replace(
        "loss.backward()", "loss.backward()\n            if loss < best: break"
    )
    early = in_call(2, "barrier", 6)
    others = [in_call(number, "all_reduce", 4, *BACKWARD) for number in (0, 1, 3)]
    text = said(job(early, *others, **source(endless)))
    assert text.startswith("Do not leave by `if loss < best: break` at train.py:5 on one rank")
    assert "batches" not in text


CLEANED_UP = """
    def main(loader):
        try:
            for batch in loader:
                model(batch)
                loss.backward()
        finally:
            dist.barrier()
    """


def test_who_was_taken_out_of_a_loop_by_an_exception_is_not_told_of_batches() -> None:
    early = in_call(2, "barrier", 7)
    others = [in_call(number, "all_reduce", 5, *BACKWARD) for number in (0, 1, 3)]
    raised_there = replace(early, handling="OSError")
    text = said(job(raised_there, *others, **source(CLEANED_UP)))
    assert text.startswith("Fix the OSError that led rank 2 to `finally` at train.py:6.")
    assert "batches" not in text
    # All of a program may run in an except.
    inside = [replace(one, handling="OSError") for one in others]
    assert "OSError" not in said(job(raised_there, *inside, **source(CLEANED_UP)))


def test_calls_of_different_kinds_are_not_told_to_be_padded() -> None:
    bucket = replace(blocked(W, 5), site=None, shape=(900,), source="flight")
    by_cpp = [
        replace(
            rank(n, W, op(W, 4), blocked(W, 5)),
            ops=(op(W, 4), bucket),
        )
        for n in (0, 1, 3)
    ]
    strange = rank(2, W, op(W, 4), replace(blocked(W, 5), shape=(2,)))
    text = said(job(strange, *by_cpp))
    assert "are in different calls there" in text
    assert "pad" not in text
    alike = [replace(n, ops=(op(W, 4), blocked(W, 5))) for n in by_cpp]
    assert "pad" in said(job(strange, *alike))


@pytest.mark.parametrize(
    ("inside", "active", "says"),
    [
        (("queue.py", "get"), False, "it is waiting in queue.get (main, train.py:5)"),
        (("threading.py", "Event.wait"), False, "it is waiting in threading.wait (main"),
        (("json/decoder.py", "decode"), True, "it is busy in main"),
        (("json/decoder.py", "decode"), False, "it is in main"),
    ],
)
def test_who_waits_for_its_own_threads_is_not_called_busy(
    inside: tuple[str, str], says: str, *, active: bool
) -> None:
    file, function = inside
    (stack,) = main_thread(Frame(f"/usr/lib/python3.11/{file}", 7, function), frame(5))
    late = rank(2, W, op(W, 4), threads=(replace(stack, active=active),))
    others = [rank(number, W, op(W, 4), blocked(W, 5, age=30.0)) for number in (0, 1, 3)]
    verdict = diagnose(job(late, *others), THRESHOLDS)[0]
    assert says in verdict.headline
    assert ("from another thread or process" in verdict.advice[0]) is ("waiting" in says)


def test_an_error_that_is_known_has_its_remedy() -> None:
    message = "Expected to have finished reduction in the prior iteration before starting"
    dead = rank(2, W, op(W, 4), **raised("RuntimeError", message))
    others = [in_call(number, "all_reduce", 4) for number in (0, 1, 3)]
    assert "find_unused_parameters=True" in said(job(dead, *others))


def test_who_was_aborted_is_told_what_gloo_aborts_for() -> None:
    aborted = rank(2, W, op(W, 4), blocked(W, 5), **killed(6))
    others = [rank(number, W, op(W, 4), op(W, 5), blocked(W, 6)) for number in (0, 1, 3)]
    assert "it ended rank 2 with SIGABRT" in said(job(aborted, *others))


def test_who_was_aborted_at_its_end_is_told_of_the_threads_that_outlive_a_program() -> None:
    aborted = rank(2, W, op(W, 4), phase=Phase.EXITED, **killed(6))
    text = said(job(aborted, *(in_call(number, "all_reduce", 5) for number in (0, 1, 3))))
    assert "end with os._exit(0) once all is written" in text
    assert "op.preamble" not in text


def test_a_checkpoint_in_the_background_without_a_group_of_its_own_is_told_to_have_one() -> None:
    shared, own = (
        f"import torch.distributed.checkpoint as dcp\nsaved = dcp.async_save({arguments})\n"
        for arguments in ("state", "state, process_group=saving")
    )
    ranks = [in_call(0, "all_gather", 2), *(in_call(n, "all_reduce", 2) for n in (1, 2, 3))]
    assert "Give the checkpoint its own group" in said(job(*ranks, **source(shared)))
    assert "Give the checkpoint its own group" not in said(job(*ranks, **source(own)))
