"""Injects faults into real jobs and judges what came of each: make campaign.

    make campaign                     all of them; an hour or two
    make campaign FAULT=kill-017      one, again, and what happened
    make campaign KIND=kill           those of one kind
    make campaign SLICE=60            some of each kind, other ones each day
    make campaign SLICE=60 DAY=1      those of that day

Every fault that harmed a job or lost a verdict is told at once, and the table at the
end. The results of faults that ran lie in build/campaign.jsonl: after an interruption
``RESUME=1`` runs the others only. What those jobs left lies in build/campaign/NAME.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
for place in (HERE, HERE.parent / "integration", HERE.parent / "suite"):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

from fault import SEED, Fault, Outcome, faults, one  # noqa: E402
from kinds import KINDS  # noqa: E402 (its place was just made known)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RESULTS = HERE.parent.parent / "build" / "campaign.jsonl"
KEPT = RESULTS.with_suffix("")
"""What the jobs that were harmed, or whose verdicts were lost, left."""


def chosen(names: Sequence[str], kinds: Sequence[str], seed: int) -> list[Fault]:
    """The faults asked for, all where nothing is. Raises SystemExit for unknown ones."""
    known = {kind.NAME: kind for kind in KINDS}
    for name in (*kinds, *(name.rpartition("-")[0] for name in names)):
        if name not in known:
            raise SystemExit(f"campaign: no kind of fault {name!r}: use {', '.join(known)}")
    if names:
        return [one(known[n.rpartition("-")[0]], int(n.rpartition("-")[2]), seed) for n in names]
    return [f for kind in KINDS if not kinds or kind.NAME in kinds for f in faults(kind, seed)]


def sample(number: int, day: int, seed: int) -> list[Fault]:
    """Some faults of each kind, fewer where they take long, other ones each day."""
    dice = random.Random(day)  # noqa: S311 (no secret)
    weights = {kind: kind.COUNT / kind.SECONDS for kind in KINDS}
    found = []
    for kind, weight in weights.items():
        share = min(max(1, round(number * weight / sum(weights.values()))), kind.COUNT)
        found += [one(kind, n, seed) for n in sorted(dice.sample(range(kind.COUNT), share))]
    return found


def run(fault: Fault, *, keep: bool = False) -> Outcome:
    """Do one fault. keep: leave its directory, and say where it is."""
    kind = next(kind for kind in KINDS if fault.kind == kind.NAME)
    where = Path(tempfile.mkdtemp(prefix=f"campaign-{fault.name}-"))
    began = time.monotonic()
    try:
        outcome = kind.inject(fault, where)
    except Exception:  # noqa: BLE001 (a fault of the campaign's own is told as one, and it goes on)
        outcome = Outcome(harmed=[f"the campaign itself failed: {traceback.format_exc()}"])
    outcome.seconds = time.monotonic() - began
    if keep:
        sys.stdout.write(f"{fault.name} was run in {where}\n")
        return outcome
    if outcome.harmed or outcome.lost:
        shutil.rmtree(KEPT / fault.name, ignore_errors=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # what is no plain file is not moved between file systems
            shutil.move(where, KEPT / fault.name)
    shutil.rmtree(where, ignore_errors=True)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 if a job was harmed or a verdict lost."""
    parser = argparse.ArgumentParser(prog="campaign")
    parser.add_argument("--fault", nargs="*", default=[], metavar="NAME", help="such as kill-017")
    parser.add_argument("--kind", nargs="*", default=[], metavar="KIND")
    parser.add_argument("--slice", type=int, metavar="N", help="some N, other ones each day")
    parser.add_argument("--day", type=int, default=dt.datetime.now(dt.UTC).toordinal())
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=max(2, 2 * (os.cpu_count() or 1)))
    parser.add_argument("--resume", action="store_true", help="leave out what has run")
    parser.add_argument("--list", action="store_true", help="name the faults and run none")
    parser.add_argument("--table", action="store_true", help="show the table of what has run")
    asked = parser.parse_args(arguments)
    if asked.slice:
        todo = sample(asked.slice, asked.day, asked.seed)
        sys.stdout.write(f"campaign: {len(todo)} faults of day {asked.day}\n")
    else:
        todo = chosen(asked.fault, asked.kind, asked.seed)
    if asked.list:
        sys.stdout.writelines(f"{fault}\n" for fault in todo)
        return 0
    alone = bool(asked.fault or asked.slice)
    results: dict[str, dict[str, Any]] = {}
    if not alone:
        RESULTS.parent.mkdir(exist_ok=True)
        results = _read() if asked.resume or asked.table or asked.kind else {}
        if asked.resume or asked.table:
            todo = [fault for fault in todo if fault.name not in results]
    if not asked.table:
        _run_all(todo, asked.jobs, results, keep=bool(asked.fault), kept=not alone)
    if not asked.fault:
        sys.stdout.write(table(results.values()))
    return int(any(row["harmed"] or row["lost"] for row in results.values()))


def _run_all(
    todo: Sequence[Fault],
    jobs: int,
    results: dict[str, dict[str, Any]],
    *,
    keep: bool,
    kept: bool,
) -> None:
    """Run faults. keep: leave their directories. kept: their results are for RESUME."""
    order = list(todo)
    random.Random(0).shuffle(order)  # noqa: S311 (so that long kinds do not come together)
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(run, fault, keep=keep): fault for fault in order}
        try:
            for number, done in enumerate(as_completed(running), 1):
                fault, outcome = running[done], done.result()
                results[fault.name] = {"name": fault.name, "kind": fault.kind, **asdict(outcome)}
                if kept:
                    _write(results.values())
                _tell(fault, outcome)
                if number % 20 == 0 or number == len(order):
                    spent = time.monotonic() - began
                    left = spent / number * (len(order) - number)
                    sys.stdout.write(
                        f"{number} of {len(order)} faults, {spent / 60:.1f} min, "
                        f"some {left / 60:.0f} to go\n"
                    )
                sys.stdout.flush()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _tell(fault: Fault, outcome: Outcome) -> None:
    for what, lines in (("HARMED", outcome.harmed), ("LOST", outcome.lost)):
        for line in lines:
            sys.stdout.write(f"{what} {fault}: {line}\n")


def _read() -> dict[str, dict[str, Any]]:
    found = {}
    with suppress(FileNotFoundError):
        for line in RESULTS.read_text("utf-8").splitlines():
            row = json.loads(line)
            found[row["name"]] = row
    return found


def _write(rows: Iterable[dict[str, Any]]) -> None:
    fresh = RESULTS.with_suffix(".new")
    fresh.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    fresh.replace(RESULTS)


def table(rows: Iterable[dict[str, Any]]) -> str:
    """What docs/harmlessness.md shows."""
    listed = list(rows)
    lines = [
        "| kind | faults | what | when | harmed | lost | not tried | seconds |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    sums = [0, 0, 0, 0, 0.0]
    for kind in KINDS:
        own = [row for row in listed if row["kind"] == kind.NAME]
        figures = [
            len(own),
            sum(bool(row["harmed"]) for row in own),
            sum(bool(row["lost"]) for row in own),
            sum(bool(row["untried"]) for row in own),
            sum(row["seconds"] for row in own),
        ]
        sums = [a + b for a, b in zip(sums, figures, strict=True)]
        lines.append(_row(kind.NAME, kind.FAULT, kind.MOMENT, figures))
    lines.append(_row("all", "", "", sums))
    return "\n".join(lines) + "\n"


def _row(name: str, what: str, when: str, figures: Sequence[float]) -> str:
    ran, harmed, lost, untried, seconds = figures
    return f"| {name} | {ran} | {what} | {when} | {harmed} | {lost} | {untried} | {seconds:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
