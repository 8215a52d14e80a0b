"""Runs programs of the zoo and keeps what hangwatch knew when it told of them: make corpus.

    record.py [--torchrun] [--as NAME] [WORD...]   those whose names contain a word, else all

What can be is run by forks, which takes a third of the time.
"""

from __future__ import annotations

import argparse
import io
import sys
from contextlib import redirect_stderr
from pathlib import Path

TESTS = Path(__file__).parents[1]
for place in ("suite", "integration", "zoo"):
    sys.path.insert(0, str(TESTS / place))

from expectations import expectations, mistakes  # noqa: E402 (made known above)
from recordings import record, store  # noqa: E402
from waiting import NoAnswerError  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--torchrun", action="store_true", help="fork no ranks")
    parser.add_argument("--as", dest="how", metavar="NAME", help="what is special about this run")
    options = parser.parse_args()
    wrong = 0
    for case in expectations():
        if options.words and not any(word in str(case) for word in options.words):
            continue
        forked = case.forks and not options.torchrun
        try:
            with redirect_stderr(io.StringIO()):  # the harness repeats what the job wrote
                result, parts = record(case, forked=forked)
        except NoAnswerError as error:
            faults = [str(error)]
        else:
            store(case, options.how or ("forked" if forked else "torchrun"), parts)
            faults = [] if case.values["state"] == "ok" else mistakes(case, result)
        wrong += bool(faults)
        print(f"{case}: {'; '.join(faults) or 'right'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
