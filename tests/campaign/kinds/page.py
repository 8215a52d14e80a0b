"""Pages with bits flipped, noise, cut short, grown, replaced or written on while they are read.

The page of a rank is its own user's file; nobody else can reach it. A rank that has mapped
it cannot be defended against that user cutting the file under it: the next write there is
a SIGBUS, as it is for every program whose mapped file is cut, its libraries included. So no
page is cut below its size while its rank lives; that is done to pages whose ranks are gone,
while others read them. All else is done to the pages of ranks that live.

What a flipped bit makes of a counter cannot be told from a counter: a verdict may be lost
by that, or name the rank whose page it is, whose watch it costs, but nobody else.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle
import sanitized
from bounded import hangwatch, no_crash, sound
from fault import Fault, Outcome, merged
from job import QUICK, Job, Result, busy
from plants import UntriedError
from scene import scene

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "page"
COUNT = 100
SECONDS = 5
FAULT = "bit flips, noise, cutting, replacing, torn writers of pages"
MOMENT = "while they are read; readers also under ASan and TSan"

SANITIZED = (("address", "corrupt"), ("address", "scribble"), ("thread", "torn"))
ROUNDS = {"corrupt": (100, 400), "scribble": (500, 2000), "torn": (50, 200)}
SANITIZED_S = 120.0
REGIONS = (
    *("head", "clocks", "identity", "phase", "in_call", "exception", "handling", "disarmed"),
    *("beacons_off", "new_groups", "marks", "events", "sites", "strings", "groups", "beacons"),
)
LIVE = ("flip", "flips", "zeros", "ones", "noise", "scribble", "grow", "delete", "replace", "other")
"""What is done to the page of a rank that lives."""
DEAD = (*LIVE, "cut", "cut to nothing", "cut and grow")
READERS = ("top", "inspect", "doctor", "analyze")
SCRIBBLES_S = 1.0
VERDICT_S = 20.0
USED = {"groups": 3, "beacons": 3}
"""Slots that the groups of the job have."""
FLIPS = 16


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """A fifth runs under sanitizers, a quarter on pages of ranks that are gone."""
    if number % 5 == 0:
        sanitizer, mode = SANITIZED[number // 5 % len(SANITIZED)]
        rounds = dice.randint(*ROUNDS[mode])
        return {"on": sanitizer, "act": mode, "rounds": rounds, "seed": dice.randrange(1 << 32)}
    which = number - number // 5 - 1
    common = {
        "region": REGIONS[which % len(REGIONS)],
        "reader": READERS[which // 3 % len(READERS)],
        "rank": dice.randrange(2),
        "seed": dice.randrange(1 << 32),
    }
    if which % 3 == 0:
        return {"on": "dead", "act": DEAD[which // 3 % len(DEAD)], **common}
    moment = dice.choice(("at work", "stalled"))
    return {"on": "job", "act": LIVE[which // 3 * 2 % len(LIVE)], "moment": moment, **common}


def inject(fault: Fault, where: Path) -> Outcome:
    """Do it to a page, and have it read."""
    drawn = fault.drawn
    try:
        if drawn["on"] == "job":
            return _in_a_job(drawn, where)
        if drawn["on"] == "dead":
            return _left_behind(drawn, where)
        return _sanitized(drawn, where)
    except (sanitized.UnbuiltError, UntriedError) as error:
        return Outcome(untried=str(error))


def _sanitized(drawn: dict[str, Any], where: Path) -> Outcome:
    words = [drawn["act"], str(where), str(drawn["seed"]), str(drawn["rounds"])]
    code, printed = sanitized.run(drawn["on"], words, SANITIZED_S * busy())
    if "unexpected memory mapping" in printed:
        return Outcome(untried="ThreadSanitizer does not run on this kernel")
    if code == 0 and printed.strip() == "good":
        return Outcome()
    return Outcome(harmed=[f"{drawn['act']}: exit code {code}: {printed[:1500]}"])


# The pages of a job.


def _in_a_job(drawn: dict[str, Any], where: Path) -> Outcome:
    expected = oracle.steps(stall=1)
    read = Outcome()
    with Job(where / "job", *QUICK, env={"STALL": "1", "ANEW": "1"}) as job:
        job.until_ready()
        page = next(p for p in job.pages() if f"-{drawn['rank']}-" in p.name)
        damage = Damage(page, drawn)
        if drawn["moment"] == "stalled":
            job.touch("gate")
            job.until((job.where / "stalled").exists)
        began = time.monotonic()
        with damage.done():
            read = _read(drawn["reader"], page, job.base, where)
        held_s = time.monotonic() - began  # the job waits here or at the gate
        job.touch("gate")
        job.until(lambda: _spoke(job), bound_s=VERDICT_S * busy())
        job.touch("release")
        result = job.finish()
    seen = [oracle.unharmed(result, expected, extra_s=held_s), no_crash(result)]
    return merged([read, *seen, _named(result, drawn["rank"])])


def _spoke(job: Job) -> bool:
    """Whether the rank that hangs was named, or a loss was told."""
    said = job.said()
    told = [line for line in said.splitlines()[1:] if line.startswith("hangwatch: ")]
    return "\n  Rank 1 " in said or any(re.search(oracle.TELLS_LOSS, line) for line in told)


def _named(result: Result, rank: int) -> Outcome:
    """Nobody but the rank that hangs, and the one whose page it is, may be named."""
    outcome = oracle.named(result, 1)
    if rank == 1:
        return outcome
    outcome.harmed = []
    for report in result.reports:
        wrong = set(report["verdict"]["culprits"]) - {rank, 1}
        if wrong:
            outcome.harmed.append(f"called: {report['verdict']['headline']}")
    return outcome


# The pages of ranks that are gone.


def _left_behind(drawn: dict[str, Any], where: Path) -> Outcome:
    with scene(where, stranger=False) as at:
        page = sorted(at.run.glob("*.page"))[drawn["rank"]]
        with Damage(page, drawn).done():
            return _read(drawn["reader"], page, at.base, where)


def _read(reader: str, page: Path, base: Path, where: Path) -> Outcome:
    """Have a command look at it."""
    pid = page.name.split("-")[2]
    words = {
        "top": ["top", str(page.parent), "--once"],
        "inspect": ["inspect", pid if Path("/proc", pid).exists() else str(os.getpid())],
        "doctor": ["doctor"],
        "analyze": ["analyze", "copies"],
    }[reader]
    directory = where / "reader"
    directory.mkdir()
    if reader == "analyze":
        (directory / "copies").mkdir()
        for path in page.parent.glob("*.page"):
            with suppress(OSError):
                shutil.copy(path, directory / "copies")
    return sound(hangwatch(words, directory, {"HANGWATCH_DIR": str(base)}))


# What is done to a page.


@dataclass(frozen=True, slots=True)
class Damage:
    """Something to do to a page, all of it drawn before."""

    page: Path
    drawn: dict[str, Any]

    @contextmanager
    def done(self) -> Iterator[None]:
        """Done once, or again and again until the reader has ended. Raises UnbuiltError."""
        act = self.drawn["act"]
        dice = random.Random(self.drawn["seed"])  # noqa: S311 (no secret)
        if act not in {"scribble", "cut and grow"}:
            getattr(self, f"_{act.replace(' ', '_')}")(dice)
            yield
            return
        over = threading.Event()
        again = self._scribble if act == "scribble" else self._cut_and_grow
        thread = threading.Thread(target=self._repeat, args=(again, dice, over), daemon=True)
        thread.start()
        try:
            yield
            thread.join(SCRIBBLES_S)
        finally:
            over.set()
            thread.join()

    def _repeat(self, act: Any, dice: random.Random, over: threading.Event) -> None:
        while not over.wait(0.0005):
            act(dice)

    def _place(self, dice: random.Random, most: int) -> tuple[int, int]:
        """Offset and bytes of a part of the region."""
        layout = sanitized.layout()
        region = self.drawn["region"]
        offset, size = layout[region]
        if region in USED:
            size = min(size, USED[region] * layout["group"][1])
        elif region in {"sites", "strings"}:
            size = dice.choice((16, 4096, size))
        at = dice.randrange(size)
        return offset + at, min(size - at, dice.randint(1, most))

    def _write(self, offset: int, data: bytes) -> None:
        """Into the file, which is memory of the rank."""
        with self.page.open("r+b") as file:
            if offset + len(data) <= os.fstat(file.fileno()).st_size:
                os.pwrite(file.fileno(), data, offset)

    def _byte(self, offset: int) -> int:
        with self.page.open("rb") as file:
            found = os.pread(file.fileno(), 1, offset)
        return found[0] if found else 0

    def _flip(self, dice: random.Random) -> None:
        offset, _ = self._place(dice, 1)
        self._write(offset, bytes([self._byte(offset) ^ 1 << dice.randrange(8)]))

    def _flips(self, dice: random.Random) -> None:
        for _ in range(FLIPS):
            self._flip(dice)

    def _zeros(self, dice: random.Random) -> None:
        offset, size = self._place(dice, 4096)
        self._write(offset, bytes(size))

    def _ones(self, dice: random.Random) -> None:
        offset, size = self._place(dice, 4096)
        self._write(offset, b"\xff" * size)

    def _noise(self, dice: random.Random) -> None:
        offset, size = self._place(dice, 4096)
        self._write(offset, dice.randbytes(size))

    def _scribble(self, dice: random.Random) -> None:
        for _ in range(20):
            offset, size = self._place(dice, 64)
            self._write(offset, dice.randbytes(size))

    def _grow(self, dice: random.Random) -> None:
        with self.page.open("ab") as file:
            file.truncate(self.page.stat().st_size + dice.randint(1, 1 << 28))

    def _delete(self, _: random.Random) -> None:
        self.page.unlink()

    def _replace(self, dice: random.Random) -> None:
        fresh = self.page.with_name(".fresh")
        fresh.write_bytes(dice.randbytes(dice.choice((0, 100, 1 << 20))))
        fresh.rename(self.page)

    def _other(self, _: random.Random) -> None:
        fresh = self.page.with_name(".fresh")
        other = next(p for p in sorted(self.page.parent.glob("*.page")) if p != self.page)
        shutil.copy(other, fresh)
        fresh.rename(self.page)

    def _cut(self, dice: random.Random) -> None:
        os.truncate(self.page, dice.randrange(self.page.stat().st_size))

    def _cut_to_nothing(self, _: random.Random) -> None:
        os.truncate(self.page, 0)

    def _cut_and_grow(self, dice: random.Random) -> None:
        _, size = sanitized.layout()["page"]
        os.truncate(self.page, dice.randrange(size))
        time.sleep(0.0002)
        os.truncate(self.page, size)
