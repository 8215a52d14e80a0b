"""Finds the rank pages of a run and reads the one that counts for each rank.

A page is opened once and then read in place: mapped where it is this user's own and its
process lives, so that what is being written can be read again. Others are read into memory
each time: their owner could cut the file while we look at the mapping, which is a SIGBUS
(and would be one in the process that writes it, too). One incarnation of the job is
watched at a time (worlds.py), from the oldest to the newest; the caller decides when to
go on to a newer one. A file that cannot be read is reported once and passed over, and so
is a run directory that was deleted: the pages mapped before stay readable.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hangwatch.console import News
from hangwatch.errors import PageError
from hangwatch.evidence import timing
from hangwatch.evidence.pages.reader import MAX_BYTES, SUFFIX, parse_moments, parse_page, parse_ring
from hangwatch.evidence.pages.worlds import World, choose_world, split_incarnations, world_of
from hangwatch.evidence.processes import alive
from hangwatch.model.kinds import Phase
from hangwatch.model.page import PageMoment, RankPage
from hangwatch.safety import redaction, untrusted
from hangwatch.safety.untrusted import Owner

NOTE_PREFIX = "agent-"
MAX_NOTE_CHARS = 2000
MAX_PAGES = 4096
MAX_REPORTED = 64
"""Pages that cannot be read are reported one by one up to this number."""
MAX_MEMBERS = 8 << 20
"""Members of groups that all pages of a run name together: 300 MB. Each of a node's ranks in a
job of 10,000 names that many for each group that spans it."""
_NO_ROOM = "No space left on device, neither for its page nor for its note"
"""The meaning of an empty note: it could be made but not written."""


@dataclass(slots=True)
class OpenPage:
    """One page."""

    path: Path
    memory: mmap.mmap | None
    """None where it belongs to another user, or no process writes it any more."""
    fd: int
    size: int
    since: float

    def read(self, *, events: bool) -> RankPage:
        """Decode it. Raises PageError."""
        return parse_page(self._content(), events=events)

    def ring(self) -> list[dict[str, Any]]:
        """Return its events, oldest first, as plain values. Raises PageError."""
        return parse_ring(self._content())

    def moments(self, after: int) -> list[PageMoment]:
        """Return its moments with a number above ``after``, oldest first. Raises PageError."""
        return parse_moments(self._content(), after)

    def raw(self) -> bytes:
        """Return its bytes. Raises PageError."""
        # Not out of the mapping: pages never written would take memory, to be read there.
        data = os.pread(self.fd, self.size, 0)
        if len(data) != self.size:
            raise PageError("it was truncated")
        return data

    def close(self) -> None:
        """Unmap it."""
        if self.memory is not None:
            self.memory.close()
        os.close(self.fd)

    def _content(self) -> mmap.mmap | bytes:
        # Reading a mapping beyond the end of a file that was cut is a SIGBUS.
        if os.fstat(self.fd).st_size < self.size:
            raise PageError("it was truncated")
        return self.raw() if self.memory is None else self.memory


@dataclass(frozen=True, slots=True)
class Seen:
    """The page of a rank, and its content without the events."""

    page: OpenPage
    light: RankPage
    replaced: bool = False
    """It has ended, and another process has come that may be in its place."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The incarnation of the job that is watched."""

    incarnation: int
    past: tuple[str, ...]
    """Names of the pages of earlier ones."""


class Pages:
    """The pages in a run directory."""

    def __init__(
        self,
        run_dir: Path,
        news: News,
        *,
        alive: Callable[[int, int], bool] = alive,
        ended: Callable[[], Mapping[int, int]] = dict,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """ended: pids of processes that were seen to end, with when (monotonic, ns)."""
        self._run_dir = run_dir
        self._news = news
        self._alive = alive
        self._ended = ended
        self._now = now
        self._open: dict[str, OpenPage] = {}
        self._refused: dict[str, float] = {}
        self._notes: dict[str, str] = {}
        self._unfinished_s = timing.PAGE_UNFINISHED_S
        self._at_end: frozenset[str] | None = None
        """Names of the pages that were there when the command ended, None before."""
        self._incarnations: list[frozenset[str]] = []
        """Names of the pages of each incarnation from the watched one on, oldest first."""
        self._past: set[str] = set()
        """Names of the pages of earlier incarnations."""
        self.incarnation = 0
        """Number of the one that is watched."""
        self.restart = -1
        """The launcher's count of its restarts in it, -1 before there is a page."""
        self._world: World | None = None
        """The one that is watched, where there were several."""
        self.pids: frozenset[int] = frozenset()
        """Of all ranks that have a page, whether it is looked at or left out."""
        self.any_ever = False
        """True once any page could be read."""

    @property
    def superseded(self) -> bool:
        """True if there are pages of a newer incarnation than the one that is watched."""
        return len(self._incarnations) > 1

    def look(self) -> dict[int, Seen]:
        """Return the page of each rank of the incarnation, by rank; looks for new ones."""
        self._scan()
        pages = [seen for seen in self._read_all() if not self._is_of_another_run(seen)]
        self.any_ever = self.any_ever or bool(pages)
        named = {seen.page.path.name: seen for seen in pages if seen.light.identity.rank >= 0}
        self.pids = frozenset(seen.light.identity.pid for seen in named.values())
        if named.keys() != frozenset().union(*self._incarnations):
            lives = {name: seen.light for name, seen in named.items()}
            self._incarnations = split_incarnations(lives, self._alive, self._ended())
        ranks: dict[int, list[Seen]] = {}
        for name in self._incarnations[0] if self._incarnations else ():
            identity = named[name].light.identity
            self.restart = identity.restart
            ranks.setdefault(identity.rank, []).append(named[name])
        self._leave_out_other_worlds(ranks)
        chosen = {rank: self._chosen(ranks[rank]) for rank in sorted(ranks)}
        self._report_crowded(chosen)
        return chosen

    def _leave_out_other_worlds(self, ranks: dict[int, list[Seen]]) -> None:
        pages = {rank: [seen.light for seen in found] for rank, found in ranks.items()}
        self._world, left_out = choose_world(pages, self._runs, self._world)
        others_run = False
        for rank, found in list(ranks.items()):
            ranks[rank] = [seen for seen in found if world_of(seen.light) not in left_out]
            others_run |= any(self._runs(seen.light) for seen in found if seen not in ranks[rank])
            if not ranks[rank]:
                del ranks[rank]
        if others_run:
            self._news.lose(
                "worlds",
                "several jobs run below this command, each with a store of its own: only one of "
                "them is watched at a time",
            )

    def _report_crowded(self, ranks: Mapping[int, Seen]) -> None:
        crowded = next((rank for rank in ranks if ranks[rank].light.groups_left_out), None)
        if crowded is not None:
            light = ranks[crowded].light
            self._news.lose(
                "groups",
                f"rank {crowded} has made more process groups than its page has room for: calls "
                f"in groups beyond the first {len(light.groups)} are known from PyTorch's Flight "
                "Recorder alone",
            )

    def advance(self) -> None:
        """Go on to the next incarnation; the pages of this one are not read any more."""
        over, *self._incarnations = self._incarnations
        for name in over:
            self._drop(name)
        self._past |= over
        self.incarnation += 1

    def export(self) -> Incarnation:
        """Return the incarnation that is watched, for restore()."""
        return Incarnation(self.incarnation, tuple(sorted(self._past)))

    def restore(self, watched: Incarnation) -> None:
        """Continue with the incarnation that an earlier watchdog watched."""
        self.incarnation, self._past = watched.incarnation, set(watched.past)

    def notes(self) -> dict[str, str]:
        """Return the notes of agents that could not record (``agent-*.err``), by file name."""
        return self._notes

    def command_ended(self) -> None:
        """Take ranks that start from now on for those of another run."""
        self._at_end = frozenset(self._open)

    def all_ended(self) -> None:
        """Wait for no file to be finished any more: no process is left that could."""
        self._unfinished_s = -1.0

    def close(self) -> None:
        """Unmap all pages."""
        for name in list(self._open):
            self._drop(name)

    def _scan(self) -> None:
        try:
            names = untrusted.names(self._run_dir, Owner.DIRECTORY)
        except OSError as error:
            self._news.lose(
                "run-dir",
                f"the directory of this run cannot be read any more ({error.strerror}): ranks that "
                "start from now on are not seen, ranks seen before still are",
            )
            return
        for name in names:
            if name.startswith(NOTE_PREFIX) and name not in self._notes:
                self._note(name)
            if name in self._open and os.fstat(self._open[name].fd).st_nlink == 0:
                self._drop(name)  # its process has replaced itself (exec) and made another
            if name.endswith(SUFFIX) and name not in self._open and name not in self._past:
                if len(self._open) < MAX_PAGES:
                    self._map(name)
                else:
                    self._news.lose(
                        "pages", f"more than {MAX_PAGES} pages: the others are not read"
                    )

    def _note(self, name: str) -> None:
        since = self._refused.setdefault(name, self._now())
        try:
            fd = untrusted.open_file(self._run_dir / name, Owner.DIRECTORY)
            with os.fdopen(fd, "rb") as file:
                data = file.read(4 * MAX_NOTE_CHARS)
        except OSError:
            return
        text = redaction.text(data.decode("utf-8", "replace"), MAX_NOTE_CHARS)
        if text or self._now() - since > self._unfinished_s:
            self._notes[name] = text.strip() or _NO_ROOM

    def _map(self, name: str) -> None:
        path = self._run_dir / name
        try:
            fd = untrusted.open_file(path, Owner.DIRECTORY)
        except OSError as error:
            self._unreadable(name, error.strerror or str(error))
            return
        status = os.fstat(fd)
        size, ours = status.st_size, status.st_uid == os.geteuid()
        if not 0 < size <= MAX_BYTES:
            os.close(fd)
            self._unreadable(name, f"it has {size} bytes")
            return
        try:
            written = ours and _may_have_writer(name)
            memory = mmap.mmap(fd, size, prot=mmap.PROT_READ) if written else None
        except OSError as error:
            os.close(fd)
            self._unreadable(name, str(error))
            return
        self._open[name] = OpenPage(path, memory, fd, size, self._refused.get(name, self._now()))

    def _read_all(self) -> Iterable[Seen]:
        room = MAX_MEMBERS
        for name, page in list(self._open.items()):
            try:
                light = page.read(events=False)
            except PageError as error:
                if self._now() - page.since > self._unfinished_s:
                    self._report(name, str(error))
                if os.fstat(page.fd).st_size != page.size:
                    self._refused[name] = page.since
                    self._drop(name)  # it may have grown since: map it again
            else:
                room -= sum(len(group.key.ranks) for group in light.groups)
                if room < 0:
                    self._report(name, f"the pages here name more than {MAX_MEMBERS} members")
                    continue
                yield Seen(page, light)

    def _is_of_another_run(self, seen: Seen) -> bool:
        if self._at_end is None or seen.page.path.name in self._at_end:
            return False
        return self._runs(seen.light)

    def _unreadable(self, name: str, why: str) -> None:
        since = self._refused.setdefault(name, self._now())
        if self._now() - since > self._unfinished_s:
            self._report(name, why)

    def _report(self, name: str, why: str) -> None:
        if self._news.losses["page"] >= MAX_REPORTED:
            self._news.lose("pages-more", "more pages cannot be read: their ranks are not watched")
            return
        self._news.lose(
            f"page:{name}", f"the page {name} cannot be read ({why}): its rank is not watched"
        )

    def _chosen(self, candidates: list[Seen]) -> Seen:
        """Choose the page of a rank where several processes claim to be it."""
        if len(candidates) == 1:
            return candidates[0]

        def order(seen: Seen) -> tuple[bool, bool, bool, int]:
            light = seen.light
            gone = not self._runs(light)
            # One that has left its groups may have a substitute.
            left = light.phase is Phase.FINALIZING
            return light.phase is Phase.BORN, gone, left, light.created_ns

        chosen = min(candidates, key=order)
        return replace(chosen, replaced=self._has_successor(chosen.light, candidates))

    def _has_successor(self, light: RankPage, candidates: list[Seen]) -> bool:
        """True if a live process was started after this one had ended."""
        end_ns = max(light.created_ns, light.heartbeat_ns)
        later = [seen.light for seen in candidates if seen.light.created_ns > end_ns]
        return bool(later) and not self._runs(light) and any(map(self._runs, later))

    def _runs(self, light: RankPage) -> bool:
        return self._alive(light.identity.pid, light.identity.start_ticks)

    def _drop(self, name: str) -> None:
        page = self._open.pop(name, None)
        if page is not None:
            page.close()


def _may_have_writer(name: str) -> bool:
    """True if the process that a page's name names may live."""
    pid = name.removesuffix(SUFFIX).rpartition("-")[2]
    return not pid.isdecimal() or os.path.exists(f"/proc/{pid}")  # noqa: PTH110 (a plain question)
