"""Ranks that compile while others wait for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from snapshots import (
    BACKWARD,
    THRESHOLDS,
    TORCH,
    TP,
    W,
    blocked,
    frame,
    job,
    main_thread,
    only,
    op,
    rank,
)

from hangwatch.diagnosis import diagnose
from hangwatch.diagnosis.facts.activity import Compiler, compiling
from hangwatch.model.kinds import Certainty, Kind, Reason, State
from hangwatch.model.snapshot import Child, Frame, ProcessState, ThreadStack

if TYPE_CHECKING:
    from hangwatch.model.snapshot import RankSnapshot
    from hangwatch.model.verdict import Verdict

STEP = frame(12, "step")
PACKAGES = TORCH.removesuffix("/torch")
WAIT = Frame("/usr/lib/python3.11/subprocess.py", 2053, "Popen._wait")
DYNAMO = (
    Frame(f"{TORCH}/_inductor/cpp_builder.py", 1900, "CppBuilder.build"),
    Frame(f"{TORCH}/_inductor/compile_fx.py", 788, "compile_fx_inner"),
    Frame(f"{TORCH}/_dynamo/convert_frame.py", 1800, "CatchErrorsWrapper.__call__"),
    Frame(f"{TORCH}/_dynamo/eval_frame.py", 1000, "_TorchDynamoContext.__call__.<locals>.wrapper"),
)
COMPILED_BACKWARD = (
    Frame(f"{TORCH}/_inductor/compile_fx.py", 2956, "_compile_fx_main.<locals>.bw_compiler"),
    Frame(
        f"{TORCH}/_functorch/_aot_autograd/runtime_wrappers.py", 2500, "CompiledFunction.backward"
    ),
    Frame(f"{TORCH}/autograd/function.py", 311, "BackwardCFunction.apply"),
)
BUILD = (
    Frame(f"{TORCH}/utils/cpp_extension.py", 2600, "_run_ninja_build"),
    Frame(f"{TORCH}/utils/cpp_extension.py", 1500, "load"),
)
LOCKED = (Frame(f"{TORCH}/utils/file_baton.py", 50, "FileBaton.wait"), *BUILD[1:])
FILELOCK = (
    Frame(f"{PACKAGES}/filelock/_api.py", 640, "BaseFileLock.acquire"),
    Frame(f"{TORCH}/utils/_filelock.py", 26, "FileLock.__enter__"),
)
IDLE = main_thread(WAIT, *DYNAMO, STEP)


def compiles(threads: tuple[ThreadStack, ...] = IDLE, **fields: Any) -> RankSnapshot:
    return rank(2, W, op(W, 40), threads=threads, **fields)


def awaited(culprit: RankSnapshot, age_s: float = 20.0) -> Verdict:
    others = (rank(n, W, op(W, 40), blocked(W, 41, age=age_s)) for n in (0, 1, 3))
    return only(job(*others, culprit, size=4))


@pytest.mark.parametrize(
    ("frames", "by"),
    [
        (DYNAMO, Compiler.TORCH),
        (
            (Frame(f"{PACKAGES}/triton/backends/nvidia/compiler.py", 1, "make"), *DYNAMO),
            Compiler.TORCH,
        ),
        (
            (
                Frame(
                    f"{TORCH}/_inductor/runtime/triton_heuristics.py",
                    1540,
                    "CachingAutotuner.autotune_to_one_config",
                ),
            ),
            Compiler.TORCH,
        ),
        (BUILD, Compiler.EXTENSION),
        ((Frame(f"{PACKAGES}/triton/compiler/compiler.py", 1, "compile"),), Compiler.TRITON),
        (
            (Frame(f"{PACKAGES}/triton/runtime/autotuner.py", 1, "Autotuner._bench"),),
            Compiler.TRITON,
        ),
        ((Frame(f"{PACKAGES}/numba/core/compiler.py", 1, "compile_extra"),), Compiler.NUMBA),
    ],
)
def test_it_is_known_by_what_the_program_asked_for(frames: tuple[Frame, ...], by: Compiler) -> None:
    found = compiling(compiles(main_thread(WAIT, *frames, STEP)))
    assert found is not None
    assert found.by is by


@pytest.mark.parametrize(
    "frames",
    [
        DYNAMO[3:],
        (Frame(f"{TORCH}/_inductor/compile_fx.py", 1919, "cudagraphify.<locals>.run"),),
        (Frame(f"{TORCH}/_inductor/compile_fx.py", 1, "<module>"),),
        (Frame(f"{TORCH}/utils/cpp_extension.py", 2700, "_import_module_from_library"), *BUILD),
        (Frame("/home/u/triton/compiler/step.py", 7, "compile"),),
        (Frame(f"{TORCH}/_inductor/runtime/triton_heuristics.py", 2, "CachingAutotuner.run"),),
        (Frame(f"{TORCH}/_dynamo/convert_frame.py", 1, "<module>"),),
        (Frame(f"{PACKAGES}/triton/runtime/jit.py", 1, "JITFunction.run"),),
        (Frame(f"{PACKAGES}/triton/runtime/autotuner.py", 1, "Autotuner.run"),),
        COMPILED_BACKWARD[1:],
    ],
)
def test_running_what_was_compiled_is_not_compiling(frames: tuple[Frame, ...]) -> None:
    assert compiling(compiles(main_thread(*frames, STEP))) is None


def test_a_torch_that_was_built_in_its_own_tree_compiles_too() -> None:
    frames = [replace(one, file=one.file.replace(PACKAGES, "/home/u/pytorch")) for one in DYNAMO]
    assert compiling(compiles(main_thread(WAIT, *frames, STEP))) is not None


def test_backward_is_compiled_in_a_thread_of_the_autograd_engine() -> None:
    main = ThreadStack("MainThread", 1, active=False, owns_gil=False, frames=(*BACKWARD, STEP))
    engine = ThreadStack("pt_autograd_0", 7, active=True, owns_gil=True, frames=COMPILED_BACKWARD)
    found = compiles((main, engine))
    assert compiling(found) is not None
    # Elsewhere the program does not wait for that thread.
    assert compiling(replace(found, threads=(*main_thread(STEP), engine))) is None


def test_as_long_as_the_compiler_works_the_job_is_slow_and_not_hung() -> None:
    verdict = awaited(compiles(processors=0.9), THRESHOLDS.hang_after_s * 10)
    assert (verdict.state, verdict.kind) == (State.SLOW, Kind.NEVER_ENTERED)
    assert (verdict.reason, verdict.culprits) == (Reason.COMPILING, (2,))
    assert verdict.certainty is Certainty.LIKELY
    assert "it is compiling with torch.compile (step, train.py:12)" in verdict.headline
    assert "slow, not as hung" in verdict.explanation
    assert "TORCH_LOGS=recompiles" in verdict.advice[0]


@pytest.mark.parametrize("processors", [0.0, 0.01, None])
def test_a_compiler_that_does_nothing_is_a_hang_after_hang_after(processors: float | None) -> None:
    idle = compiles(processors=processors)
    assert awaited(idle, THRESHOLDS.hang_after_s - 1).state is State.SLOW
    verdict = awaited(idle, THRESHOLDS.hang_after_s)
    assert (verdict.state, verdict.reason) == (State.HANG, Reason.COMPILING)
    assert "using the CPU" in verdict.explanation


def test_who_waits_for_a_lock_file_is_hung_whatever_else_it_does() -> None:
    verdict = awaited(compiles(main_thread(*LOCKED, STEP), processors=1.0), 300.0)
    assert (verdict.state, verdict.reason) == (State.HANG, Reason.COMPILING)
    assert "waiting for the lock file of a C++ extension" in verdict.headline
    assert "delete the file `lock`" in verdict.advice[0]


@pytest.mark.parametrize(
    ("compiler", "where"),
    [(BUILD[1:], "TORCH_EXTENSIONS_DIR"), (DYNAMO[1:], "TORCHINDUCTOR_CACHE_DIR")],
)
def test_a_lock_that_the_kernel_keeps_is_held_by_somebody(
    compiler: tuple[Frame, ...], where: str
) -> None:
    verdict = awaited(compiles(main_thread(*FILELOCK, *compiler, STEP), processors=1.0), 300.0)
    assert (verdict.state, verdict.reason) == (State.HANG, Reason.COMPILING)
    assert "waiting for the lock of" in verdict.headline
    assert "fuser -v" in verdict.advice[0]
    assert where in verdict.advice[0]


def test_who_waits_for_the_lock_of_a_rank_that_compiles_is_not_hung() -> None:
    waits = compiles(main_thread(*FILELOCK, *BUILD[1:], STEP), processors=0.0)
    others = (rank(n, W, op(W, 40), blocked(W, 41, age=300.0)) for n in (0, 1))
    for processors, state in ((1.0, State.SLOW), (0.0, State.HANG)):
        builds = rank(3, W, op(W, 40), threads=main_thread(WAIT, *BUILD, STEP))
        ranks = (*others, waits, replace(builds, processors=processors))
        (verdict, *_) = diagnose(job(*ranks, size=4), THRESHOLDS)
        assert (verdict.state, verdict.reason) == (state, Reason.COMPILING)
        others = (rank(n, W, op(W, 40), blocked(W, 41, age=300.0)) for n in (0, 1))


def test_an_extension_is_named_by_the_compiler_that_builds_it() -> None:
    command = "/usr/bin/c++ -MMD -MF main.o.d -DTORCH_EXTENSION_NAME=attention -c main.cpp"
    child = Child(99, command, ProcessState(alive=True, state="R"))
    building = compiles(main_thread(WAIT, *BUILD, STEP), children=(child,), processors=1.0)
    verdict = awaited(building)
    assert "it is building the C++ extension attention (step, train.py:12)" in verdict.headline
    assert verdict.advice[0].startswith("Build attention before the job starts")


def test_a_rank_that_compiles_does_not_wait_for_what_it_has_enqueued() -> None:
    pending = op(TP[1], 7, source="flight")
    culprit = rank(2, W, op(W, 40), pending, threads=IDLE, pending_age_s=20.0)
    others = (rank(n, W, op(W, 40), blocked(W, 41)) for n in (0, 1, 3))
    (verdict,) = diagnose(job(*others, culprit, size=4), THRESHOLDS)
    assert (verdict.reason, verdict.culprits) == (Reason.COMPILING, (2,))
    assert verdict.certainty is Certainty.LIKELY
