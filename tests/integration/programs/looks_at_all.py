"""Runs commands of hangwatch, one after the other, each within bounds of time and memory.

Standard input: a JSON list of command lines. For each a line of JSON: its exit code, what it
has said, and the most memory so far.
"""

import contextlib
import io
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

from hangwatch import cli
from hangwatch.commands import timing
from hangwatch.commands.doctor.machine import watched_jobs

BOUND_S = 20
MOST_BYTES = 3 << 30

timing.TOP_ONCE_S = 0.0


def late(*_):
    raise TimeoutError("it blocks")


def doctor_jobs(*_):
    for finding in watched_jobs(os.environ):
        sys.stdout.write(f"{finding}\n")
    return 0


cli.OWN_COMMANDS["doctor:jobs"] = doctor_jobs
resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
signal.signal(signal.SIGALRM, late)
for words in json.load(sys.stdin):
    said = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    signal.alarm(BOUND_S)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = end.code
        except BaseException:  # noqa: BLE001 (a traceback is what must not be)
            code = 99
            traceback.print_exc()
    signal.alarm(0)
    said.flush()
    text = said.buffer.getvalue().decode("utf-8", "replace")
    # Not ru_maxrss, which is at least what whoever started us had then.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM:"))
    mib = int(peak.split()[1]) >> 10
    outcome = {"words": words, "code": code, "said": text[-5000:], "mib": mib}
    sys.stdout.write(json.dumps(outcome) + "\n")
