"""Instructions of a wrapped call, a sample, a page read and a diagnosis: make instructions.

    python tests/bench/instructions.py            count, and compare with what is recorded
    python tests/bench/instructions.py --record   record what is counted now

Unlike times they are the same on a busy machine as on an idle one, and the processor
changes them by less than a per cent; what the kernel does is not in them, nor Python's
garbage collector. instructions.json holds what was counted, and with what. Another
interpreter or compiler makes other instructions of the same code: so all counts are
compared in units of a reference, plain Python, and that leaves some of the difference.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from callgrind import CountingError, count_all, surroundings
from counted import BARE, REFERENCE, WRAPPED

RECORD = Path(__file__).with_name("instructions.json")
LIMIT = 1.05
"""Growth that is let pass. Counts of the same code differ by a per cent at most, by the state
of the heap, whatever else the machine does."""
LIMIT_ELSEWHERE = 1.25
"""The same with another interpreter or compiler than recorded, which have made up to 13 %
more of the same code: CPython 3.11 to 3.13 of several builds, GCC and clang."""
ADDED = "added to a call by wrapping it"


@dataclass(frozen=True, slots=True)
class Counts:
    """Instructions by figure, and what they were counted with."""

    surroundings: dict[str, str]
    instructions: dict[str, int]

    def figures(self) -> dict[str, int]:
        """What is compared."""
        added = self.instructions[WRAPPED] - self.instructions[BARE]
        others = self.instructions.items()
        context = {REFERENCE, BARE, WRAPPED}
        return {ADDED: added, **{name: each for name, each in others if name not in context}}

    def ratios(self, recorded: Counts) -> dict[str, float]:
        """How much more each figure takes than was recorded, both in units of the reference."""
        unit = self.instructions[REFERENCE] / recorded.instructions[REFERENCE]
        before = recorded.figures()
        return {name: each / before[name] / unit for name, each in self.figures().items()}


def table(now: Counts, recorded: Counts) -> str:
    """All counts, and the ratios of those that are compared."""
    ratios = now.ratios(recorded)
    before = recorded.figures() | recorded.instructions
    lines = [f"{'instructions each':30} {'recorded':>12} {'now':>12}  ratio\n"]
    for name, each in (now.figures() | now.instructions).items():
        ratio = f"{ratios[name]:7.3f}" if name in ratios else ""
        lines.append(f"{name:30} {before[name]:12,} {each:12,}{ratio}\n")
    return "".join(lines)


def differences(now: Counts, recorded: Counts) -> list[str]:
    """What the two were counted with that is not the same, a line each."""
    return [
        f"{name}: {now.surroundings[name]}, recorded with {before}"
        for name, before in recorded.surroundings.items()
        if now.surroundings[name] != before
    ]


def beyond(now: Counts, recorded: Counts) -> tuple[list[str], list[str]]:
    """What takes more than recorded by the limit, and what takes less by it, a line each."""
    limit = LIMIT_ELSEWHERE if differences(now, recorded) else LIMIT
    ratios = now.ratios(recorded).items()
    more = [f"{name}: {ratio - 1:.1%} more" for name, ratio in ratios if ratio > limit]
    less = [f"{name}: {1 - ratio:.1%} less" for name, ratio in ratios if ratio < 1 / limit]
    return more, less


def compare(now: Counts, recorded: Counts) -> int:
    """Print the table and what is to be said of it; 1 if a figure has grown too much."""
    if now.instructions.keys() != recorded.instructions.keys():
        say("other figures than recorded: record them with --record")
        return 1
    sys.stdout.write(table(now, recorded))
    elsewhere = differences(now, recorded)
    for line in elsewhere:
        say(line)
    if elsewhere:
        say(f"so a figure may be {LIMIT_ELSEWHERE - 1:.0%} more, instead of {LIMIT - 1:.0%}")
    more, less = beyond(now, recorded)
    for line in more:
        say(f"{line} than recorded: make it less, or record it with --record and say why")
    for line in less if not elsewhere else ():
        say(f"{line} than recorded: keep it with --record")
    return 1 if more else 0


def say(line: str) -> None:
    """Print a line that tells where it comes from."""
    sys.stdout.write(f"instructions: {line}\n")


def main() -> int:
    """Count, and compare or record; 1 if a figure has grown too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="record what is counted now")
    options = parser.parse_args()
    try:
        counted = count_all()
    except CountingError as error:
        say(str(error))
        return 1
    now = Counts(surroundings(), counted)
    if options.record:
        RECORD.write_text(json.dumps(asdict(now), indent=1) + "\n")
        return 0
    return compare(now, Counts(**json.loads(RECORD.read_text())))


if __name__ == "__main__":
    sys.exit(main())
