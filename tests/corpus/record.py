"""Runs programs of the zoo and keeps what hangwatch knew when it told of them: make corpus.

    record.py [--torchrun] [--as NAME] [WORD...]   those whose names contain a word, else all
    record.py --gpu [--jobs N] [WORD...]           those of tests/gpu, which need one
    record.py --frameworks [WORD...]               those of tests/frameworks

What can be is run by forks, which takes a third of the time.
"""

from __future__ import annotations

import argparse
import io
import sys
from contextlib import redirect_stderr
from multiprocessing.pool import ThreadPool
from pathlib import Path

TESTS = Path(__file__).parents[1]
for place in ("suite", "integration", "zoo"):
    sys.path.insert(0, str(TESTS / place))

from expectations import PROGRAMS, Expectation, expectations, mistakes  # noqa: E402 (made known above)
from recordings import OF_FRAMEWORKS, ON_GPU, ROOT, record, store  # noqa: E402
from waiting import NoAnswerError  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--torchrun", action="store_true", help="fork no ranks")
    parser.add_argument("--as", dest="how", metavar="NAME", help="what is special about this run")
    parser.add_argument("--gpu", action="store_true", help="the programs that need a GPU")
    parser.add_argument("--frameworks", action="store_true", help="the programs of frameworks")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time")
    options = parser.parse_args()
    programs = ON_GPU if options.gpu else OF_FRAMEWORKS if options.frameworks else PROGRAMS
    cases = [
        case
        for case in expectations(programs)
        if not options.words or any(word in str(case) for word in options.words)
    ]
    how = options.how or ("gpu" if options.gpu else "")
    forks = programs is PROGRAMS and not options.torchrun
    python = str(ROOT / ".venv-frameworks/bin/python") if options.frameworks else sys.executable
    # The harness repeats what the jobs wrote.
    with redirect_stderr(io.StringIO()), ThreadPool(options.jobs) as pool:
        right = list(pool.imap(lambda case: _recorded(case, how, python, forks=forks), cases))
    return 0 if all(right) else 1


def _recorded(case: Expectation, how: str, python: str, *, forks: bool) -> bool:
    """Record a case, and say whether it went as its header has it."""
    forked = case.forks and forks
    try:
        result, parts = record(case, forked=forked, python=python)
    except (NoAnswerError, AssertionError) as error:
        faults = [str(error)]
    else:
        store(case, how or ("forked" if forked else "torchrun"), parts)
        faults = [] if case.values["state"] == "ok" else mistakes(case, result)
    print(f"{case}: {'; '.join(faults) or 'right'}", flush=True)
    return not faults


if __name__ == "__main__":
    sys.exit(main())
