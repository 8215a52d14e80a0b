"""Tries hangwatch with the versions of torch and Python that people have.

Makes an environment for each, one at a time (5 GB, removed after), and runs in it the tests
of counting, programs of the zoo, and ``hangwatch analyze`` on dumps that this torch wrote.
What came of it is kept in tests/matrix.json, and docs/compatibility.md is written from that.

With arguments, such as ``2.6.0`` or ``2.14.1/3.13``, only those; ``--write`` writes the page
from what is kept and tries none.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
KEPT = ROOT / "tests" / "matrix.json"
PAGE = ROOT / "docs" / "compatibility.md"
MARK = "<!-- the table is written by make matrix -->"
VERSIONS = (
    *("2.15.0/3.11", "2.14.1/3.11", "2.14.1/3.13", "2.13.0/3.11", "2.13.0/3.12", "2.12.1/3.11"),
    *("2.10.0/3.11", "2.8.0/3.11", "2.6.0/3.11", "2.4.1/3.11"),
)
TESTS = {
    "counting": ("integration/test_counting.py", "integration/test_native_torch.py"),
    "dumps": ("integration/test_analyze.py",),
    "backends": ("newest_torch",),
}
NONE = {"dumps": "none of gloo", "backends": "not recorded"}
"""What a torch has not that does not run them."""
HOOKS_SINCE = (2, 15)
"""The first torch whose hook records the calls of any backend."""
PROGRAMS = (
    *("accumulation", "broadcast_run_ahead", "ddp_data_worker_stuck", "ddp_graphs", "ddp_healthy"),
    *("ddp_stopped_unrecorded", "gil_held", "metric_on_first_rank", "metric_shape_mismatch"),
    *("missing_init", "no_sync_on_one_rank", "op_mismatch", "order_swapped_in_pairs"),
    *("rank_raises", "rank_sigkilled", "rank_sigstopped", "recompiles", "recv_without_send"),
    *("skipped_batch", "slow_checkpoint", "swallowed_exception", "tp_dp_order_swapped"),
)
"""Of each kind of fault, with DDP and without, and healthy ones."""
LIMIT_S = 1800
_SUMMARY = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
_ZOO = re.compile(r"(\d+) of (\d+) are right")


def main(arguments: Sequence[str]) -> int:
    chosen = [one for one in arguments if one != "--write"]
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if "--write" not in arguments:
        for name in VERSIONS:
            if not chosen or any(name.startswith(one) for one in chosen):
                known[name] = tried(name)
                KEPT.write_text(json.dumps(known, indent=1) + "\n")
    table = list(_table(known))
    print("\n".join(table))
    if "--write" in arguments or not chosen:
        before = PAGE.read_text().partition(MARK)[0]
        PAGE.write_text(before + "\n".join((MARK, "", *table, "")))
    return 0


def tried(name: str) -> dict[str, Any]:
    """Make an environment of that torch and Python, and run everything in it."""
    version, _, python = name.partition("/")
    home = BUILD / "matrix"
    shutil.rmtree(home, ignore_errors=True)
    began = time.monotonic()
    try:
        bin_ = _installed(home, version, python)
        found: dict[str, Any] = {"torch": _printed(bin_, "import torch; print(torch.__version__)")}
        found["lacks"] = _printed(bin_, _LACKS)
        for what, files in TESTS.items():
            if what == "dumps" and "Flight Recorder came" in found["lacks"]:
                continue  # it writes none of gloo
            if what == "backends" and _is_before(version, HOOKS_SINCE):
                continue
            tests = [str(ROOT / "tests" / file) for file in files]
            output = _run(bin_ / "pytest", "-q", "-n", "2", "-p", "no:randomly", *tests)
            found[what] = {kind.rstrip("s"): int(n) for n, kind in _SUMMARY.findall(output)}
            found[f"{what} failed"] = re.findall(r"^FAILED (\S+)", output, re.MULTILINE)
        output = _run(bin_ / "python", ROOT / "tests" / "zoo" / "table.py", "--only", *PROGRAMS)
        count = _ZOO.search(output)
        if count is None:
            raise RuntimeError(f"the zoo of {name} came to no end: {output[-2000:]}")
        found["zoo"] = [int(n) for n in count.groups()]
        found["zoo wrong"] = [line for line in output.splitlines() if _is_wrong(line)]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    found["seconds"] = round(time.monotonic() - began)
    found["on"] = f"{datetime.now(UTC):%Y-%m-%d}"
    found["commit"] = _run("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    return found


def _installed(home: Path, version: str, python: str) -> Path:
    """The bin directory of an environment with that torch, what we need, and ourselves."""
    _run(f"python{python}", "-m", "venv", home, check=True)
    pip = home / "bin" / "pip"
    quiet = ("install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
    _run(pip, *quiet, f"torch=={version}", "numpy", check=True)
    pinned = (ROOT / "tests" / "constraints.txt").read_text().splitlines()
    constraints = home / "constraints.txt"
    others = (line for line in pinned if not line.startswith(("torch==", "numpy==")))
    constraints.write_text("\n".join(others))
    _run(pip, *quiet, "-c", constraints, "--editable", f"{ROOT}[test]", check=True)
    return home / "bin"


_LACKS = """
import torch.distributed as dist
from torch._C import _distributed_c10d as core
from hangwatch.page import native
from hangwatch.agent import torch_api
module = native.load()
wrapped = module.wrap_methods(dist.ProcessGroup, dist.Work, lambda group: -1)
found = torch_api.Recorders(core)
gil_free = module.use_dumps(torch_api.NCCL in found.dumps, torch_api.GENERAL in found.dumps)
c10d = dist.distributed_c10d
print("; ".join(torch_api.lacks(c10d, found, wrapped, gil_free=gil_free)))
"""


def _printed(bin_: Path, program: str) -> str:
    """The last line that a program prints; imports may print warnings before it."""
    return _run(bin_ / "python", "-c", program, check=True).rstrip("\n").rpartition("\n")[2]


def _run(*words: str | Path, check: bool = False) -> str:
    """What a command prints. Raises RuntimeError where it has to succeed and does not."""
    done = subprocess.run(  # noqa: S603 (our own)
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def _is_before(version: str, other: tuple[int, int]) -> bool:
    return tuple(map(int, version.split(".")[:2])) < other


def _is_wrong(line: str) -> bool:
    return line.rstrip().endswith(" wrong") or line.startswith("    ")


def _table(known: dict[str, Any]) -> Iterator[str]:
    yield "| torch | Python | counting | dumps | other backends | zoo | what is missing | tried |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name in VERSIONS:
        if name in known:
            found = known[name]
            cells = (
                found["torch"],
                name.partition("/")[2],
                *(_counts(found[what]) if what in found else NONE[what] for what in TESTS),
                f"{found['zoo'][0]} of {found['zoo'][1]} right",
                found["lacks"] or "nothing",
                f"{found['on']}, {found['commit']}",
            )
            yield f"| {' | '.join(cells)} |"
    failed = [
        f"- torch {name}: `{line.strip()}`"
        for name in VERSIONS
        for what in (*(f"{one} failed" for one in TESTS), "zoo wrong")
        for line in known.get(name, {}).get(what, ())
    ]
    if failed:
        yield from ("", "What is not right there:", "", *failed)


def _counts(found: dict[str, int]) -> str:
    bad = found.get("failed", 0) + found.get("error", 0)
    return f"{found.get('passed', 0)} passed" + (f", {bad} failed" if bad else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
