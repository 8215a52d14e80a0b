"""Time from the moment a rank can no longer proceed to the line on standard error.

Each program prints time.monotonic() when its last rank stops; the harness notes when
the verdict's first line appears.
"""

from __future__ import annotations

import argparse
import io
import re
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "suite"))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from harness import reaches, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROLOGUE = """\
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(64)
for step in range(200):
    dist.all_reduce(tensor)
    time.sleep(0.01)
dist.barrier()
print(f"stuck {time.monotonic()};", end="", flush=True)
"""
MISMATCH = """\
if rank == 1:
    dist.broadcast(tensor, src=0)
else:
    dist.all_reduce(tensor)
"""
ASLEEP = """\
if rank == 1:
    time.sleep(10_000)
dist.all_reduce(tensor)
"""


def announced(state: str) -> Callable[[Sequence[Mapping[str, Any]]], bool]:
    """A condition: the report of a state is there, and so surely is its line, which follows."""
    reached, since = reaches(state), 0.0

    def holds(reports: Sequence[Mapping[str, Any]]) -> bool:
        nonlocal since
        since = since or (time.monotonic() if reached(reports) else 0.0)
        return since > 0 and time.monotonic() - since > 1.0

    return holds


def seconds(body: str, state: str, *options: str) -> float:
    """From the last rank's stop to the announcement of a state."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "train.py")
        program.write_text(PROLOGUE + body)
        with redirect_stderr(io.StringIO()):  # the harness repeats what the job wrote
            result = watch(program, *options, until=announced(state))
    stops = [float(at) for at in re.findall(r"stuck ([0-9.]+);", result.stdout)]
    return result.announced[state] - max(stops)


def main() -> None:
    """Print the median and the range of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for name, body, state, options in (
        ("provable (op_mismatch), defaults", MISMATCH, "hang", ()),
        ("slow, --suspect-after 5", ASLEEP, "slow", ("--suspect-after", "5")),
        ("hang, --hang-after 10", ASLEEP, "hang", ("--suspect-after", "5", "--hang-after", "10")),
        ("slow, defaults (auto)", ASLEEP, "slow", ()),
    ):
        times = [seconds(body, state, *options) for _ in range(rounds)]
        print(
            f"{name}: {statistics.median(times):.2f} s "
            f"({min(times):.2f} to {max(times):.2f}, n={rounds})",
            flush=True,
        )


if __name__ == "__main__":
    main()
