"""Runs the zoo and prints a table: program, expected, found, seconds, right or wrong.

With arguments only the programs whose names contain one of them; after ``--only`` those that
have one of them as their name. Exits 1 if one is wrong.
"""

from __future__ import annotations

import io
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "suite"))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from expectations import Expectation, expectations, mistakes, run, told_by, values_of
from waiting import NoAnswerError

if TYPE_CHECKING:
    from harness import Result

WIDTHS = (34, 46, 46, 7)
KEYS = ("state", "kind", "culprits")


def main() -> int:
    chosen = [case for case in expectations() if _is_chosen(case)]
    wrong = 0
    began = time.monotonic()
    _print("program", "expected", "found", "seconds", "")
    for case in chosen:
        started = time.monotonic()
        found, faults = _try(case)
        wrong += bool(faults)
        seconds = f"{time.monotonic() - started:.1f}"
        _print(str(case), _expected(case), found, seconds, "wrong" if faults else "right")
        for fault in faults:
            print(f"    {fault}")
    minutes = (time.monotonic() - began) / 60
    print(f"{len(chosen) - wrong} of {len(chosen)} are right, in {minutes:.1f} minutes")
    return 1 if wrong else 0


def _is_chosen(case: Expectation) -> bool:
    words = sys.argv[1:]
    if words[:1] == ["--only"]:
        return case.program.stem in words[1:]
    return not words or any(word in str(case) for word in words)


def _try(case: Expectation) -> tuple[str, list[str]]:
    try:
        with redirect_stderr(io.StringIO()):  # the harness repeats what the job wrote
            result = run(case)
        return _found(case, result), mistakes(case, result)
    except NoAnswerError as error:
        return "nothing", [str(error)]


def _expected(case: Expectation) -> str:
    return " ".join(case.values[key] for key in KEYS if key in case.values)


def _found(case: Expectation, result: Result) -> str:
    reports = told_by(case, result) or result.reports
    if not reports:
        return "ok"
    values = values_of(reports[0], result)
    return f"{values['state']} {values['kind']} {','.join(map(str, values['culprits']))}"


def _print(*cells: str) -> None:
    padded = (cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False))
    print(" ".join((*padded, cells[-1])).rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
