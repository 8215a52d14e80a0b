"""What is counted, under callgrind: ``python counted.py DIRECTORY``.

Each figure is prepared, repeated until the interpreter has specialised its code (PEP 659),
and then repeated between two marks: calls of getppid, which nothing else makes here, and
before which callgrind writes down what it has counted since the last one. So the start,
the imports and what is prepared are not in it.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import mmap
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stub import Group, Tensor, Work, torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

REFERENCE = "reference"
BARE = "call, not wrapped"
WRAPPED = "call, wrapped"
REFERENCE_BYTES = 4096
GROUPS = 8
EVENTS = 512
"""More than the ring of a page holds."""
SOURCE_LINES = 100
"""Of the script. Of one much longer Python's own parser is all that the diagnosis costs."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What is called, and how often."""

    prepare: Callable[[Path], Call]
    warm_up: int
    repetitions: int


def reference(_: Path) -> Call:
    """Plain Python and a copy of memory: what the interpreter and the C library cost."""
    data = bytes(REFERENCE_BYTES)

    def call() -> int:
        total = 0
        for number in range(64):
            total += len(str({"number": number}["number"]))
        return total + len(bytearray(data))

    return call


def bare_call(_: Path) -> Call:
    """A collective of the stub, and the wait for it."""
    group, tensors = Group(), [Tensor()]
    return lambda: group.allreduce(tensors).wait()


def wrapped_call(directory: Path) -> Call:
    """The same, recorded by the native wrappers."""
    native = _page(directory)
    sys.modules["torch"] = torch()
    native.wrap_methods(Group, Work, lambda _: 0)
    return bare_call(directory)


def sample(directory: Path) -> Call:
    """The agent's sample, of groups whose work is complete and other work each time."""
    native = _page(directory)
    exceptions, flight, groups, sampler, torch_api = (
        importlib.import_module(f"hangwatch.agent.{name}")
        for name in (
            *("sample.exceptions", "sample.flight", "record.groups", "sample.sampler"),
            "torch_api",
        )
    )
    made = [Group() for _ in range(GROUPS)]
    world = SimpleNamespace(
        pg_map=dict.fromkeys(made, ("gloo", None)),
        pg_names={group: str(number) for number, group in enumerate(made)},
        pg_group_ranks={group: {rank: rank for rank in range(GROUPS)} for group in made},
        pg_backend_config=dict.fromkeys(made, "cpu:gloo"),
        default_pg=made[0],
    )
    c10d = SimpleNamespace(_world=world, ProcessGroup=Group)
    known = groups.Groups(c10d, native, adopt=lambda _: None)
    known.update()
    dumps = itertools.cycle(_status(number) for number in (8, 9))
    core = SimpleNamespace(_dump_fr_trace_json=lambda **_: next(dumps))
    recorder = flight.FlightRecorder(torch_api.Recorders(core), itertools.count(0.0, 0.25).__next__)
    errors = exceptions.Exceptions(native, ())
    page = str(directory / "counted.page")
    call: Call = sampler.Sampler(native, known, recorder, errors, page, bool, id).sample
    return call


def _status(number: int) -> bytes:
    """What torch's Flight Recorder says of groups that have all completed this number."""
    last = {"last_enqueued_collective": number, "last_completed_collective": number}
    return json.dumps({"pg_status": {str(group): last for group in range(GROUPS)}}).encode()


def light_page_read(directory: Path) -> Call:
    """The watchdog's read of a page at each look."""
    parse_page, memory = _written(directory)
    return lambda: parse_page(memory, events=False)


def full_page_read(directory: Path) -> Call:
    """The watchdog's read of a page with its last calls, at an incident."""
    parse_page, memory = _written(directory)
    return lambda: parse_page(memory, events=True)


def diagnosis(_: Path) -> Call:
    """The verdict on a job of 64 ranks, one of which is stuck in its data loader."""
    bench = importlib.import_module("bench_diagnose")
    diagnose = importlib.import_module("hangwatch.diagnosis").diagnose
    job, _stuck = bench.made(2, 4)
    lines = bench.SOURCE.splitlines(keepends=True)[:SOURCE_LINES]
    job = replace(job, sources={bench.SCRIPT: "".join(lines)})
    return lambda: diagnose(job, bench.THRESHOLDS)


def _page(directory: Path) -> Any:
    """The native module with a page, which has groups, and with nothing wrapped."""
    native: Any = importlib.import_module("hangwatch._native")
    native.unwrap_methods()
    native.close_page()
    path = directory / "counted.page"
    path.unlink(missing_ok=True)
    call_site = importlib.import_module("hangwatch.agent.call_site")
    known = call_site.known_prefixes()
    native.set_prefixes(known.internal, known.program)
    identity = {"pid": os.getpid(), "rank": 0, "world_size": GROUPS}
    native.open_page(str(path), identity)
    for slot in range(GROUPS):
        native.define_group(slot, str(slot), "mesh", range(GROUPS), slot, "gloo")
    return native


def _written(directory: Path) -> tuple[Callable[..., object], mmap.mmap]:
    """What reads a page, and one whose ring is full."""
    call = wrapped_call(directory)
    for _ in range(EVENTS):
        call()
    with (directory / "counted.page").open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    return importlib.import_module("hangwatch.evidence.pages.reader").parse_page, memory


FIGURES = {
    REFERENCE: Figure(reference, 32, 200),
    BARE: Figure(bare_call, 32, 2000),
    WRAPPED: Figure(wrapped_call, 32, 2000),
    "sample of 8 groups": Figure(sample, 32, 200),
    "page read without its calls": Figure(light_page_read, 16, 16),
    "page read with its calls": Figure(full_page_read, 2, 2),
    "diagnosis of 64 ranks": Figure(diagnosis, 2, 2),
}
"""Those that take long have loops of their own, and need fewer calls to be warm."""


def main() -> None:
    """Repeat each figure between two marks."""
    directory = Path(sys.argv[1])
    gc.disable()
    for figure in FIGURES.values():
        call = figure.prepare(directory)
        for _ in range(figure.warm_up):
            call()
        gc.collect()
        os.getppid()
        for _ in range(figure.repetitions):
            call()
        os.getppid()


if __name__ == "__main__":
    main()
