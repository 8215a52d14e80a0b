"""What the rules work with: the job, who ended, the wait-for graph, and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TypeVar

from hangwatch.diagnosis.facts.activity import Activity, activity
from hangwatch.diagnosis.facts.alignment import Departures, departures
from hangwatch.diagnosis.facts.awaited import On, has_returned, same_thread
from hangwatch.diagnosis.facts.blocked import Blocked, blocked
from hangwatch.diagnosis.facts.devices import Stuck
from hangwatch.diagnosis.facts.endings import Ending, How
from hangwatch.diagnosis.facts.faults import MARGIN_S, Fault, gpu_fault
from hangwatch.diagnosis.facts.history import HANDLES, THREAD_DIED
from hangwatch.diagnosis.facts.job import NEW_GROUP, Job, seconds
from hangwatch.diagnosis.facts.stores import awaited_keys, nearest
from hangwatch.diagnosis.facts.wait_points import UNNAMED, Channel, Place, Setup, Wait, WaitPoint
from hangwatch.diagnosis.graph import Graph, held_up
from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.text.phrases import key_text, wait_point_text
from hangwatch.diagnosis.text.wording import Text
from hangwatch.model.calls import Site
from hangwatch.model.frames import innermost_user_site, program_thread, user_frames, with_source
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import Certainty, Kind, Reason, What
from hangwatch.model.snapshot import Frame, Mark, OpRecord, RankSnapshot
from hangwatch.model.verdict import Collective

_T = TypeVar("_T")
MOST_COMPARED = 128
"""Ranks of which all that they did is compared."""
FEW = 4
"""Of those that wait at one point, and of those that are missing there."""
_FROZEN = frozenset({Reason.STOPPED, Reason.DEBUGGER})
_UNEXPLAINED = frozenset({Reason.UNKNOWN, Reason.GPU_KERNEL})


@dataclass(frozen=True, slots=True)
class Finding:
    """One root cause. ``final``: no future event lets those who wait go on."""

    kind: Kind
    reason: Reason
    certainty: Certainty
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    text: Text
    final: bool = False
    wait_point: WaitPoint | None = None
    collective: Collective | None = None
    site: Site | None = None
    victim_site: Site | None = None
    waits: tuple[Wait, ...] = ()
    """Of its victims and its culprits."""
    ended: tuple[int, ...] = ()
    """Culprits that are gone."""
    hang: Certainty | None = None
    """That it hangs, where that is surer than who did it."""
    apart: bool = False
    """The culprits and the others are in different calls of the program, of one operation."""
    differs: str = ""
    """What is not the same in their calls (facts/signatures.py: Differs), where they match else."""

    undecided: tuple[int, ...] = ()
    """Whom its text tells of, where any of its culprits may be at fault."""
    against: tuple[int, ...] = ()
    """Whom its culprits are held against first."""
    what: What | None = None
    """Why it came to it, where the rule that found it knows."""
    settled: bool = False
    """Neither what all did nor the source decides further who did it."""

    @property
    def makes_a_group(self) -> bool:
        """Whether it is about who made a group."""
        point = self.wait_point
        setting_up = isinstance(point, Setup) and point.call == NEW_GROUP
        return setting_up or self.what is What.GROUP_CREATION

    def of_any(self, ranks: Iterable[int]) -> Finding:
        """The finding, of all of these ranks, of which nothing tells who is at fault."""
        candidates = {*ranks}
        return replace(
            self,
            culprits=tuple(sorted(candidates)),
            victims=tuple(sorted({*self.culprits, *self.victims} - candidates)),
            certainty=Certainty.POSSIBLE,
            hang=self.hang or self.certainty,
            undecided=self.culprits,
        )

    def likely_at_most(self) -> Finding:
        """The finding, with a guess who did it; that it hangs stays as sure as it is."""
        sure = self.certainty.at_most(Certainty.LIKELY)
        return replace(self, certainty=sure, hang=self.hang or self.certainty)


@dataclass(slots=True)
class Case:
    """A job under judgement."""

    job: Job
    ended: Mapping[int, Ending]
    graph: Graph
    source: Source
    disputed: Mapping[int, int]
    stuck: Mapping[int, Stuck] = field(default_factory=dict)
    """Ranks whose device is stuck itself."""
    _departures: Departures | None = None
    _activities: dict[int, Activity] = field(default_factory=dict)
    _blocked: dict[int, Blocked | None] = field(default_factory=dict)
    _within_s: float | None = None

    @property
    def texts(self) -> Mapping[str, str]:
        """Text of the user's files."""
        return self.job.snapshot.sources

    @property
    def departures(self) -> Departures:
        """Who left the common program, from what all ranks did."""
        if self._departures is None:
            self._departures = departures(self.job, self.ended, self.source, self._compared())
        return self._departures

    def _compared(self) -> list[int]:
        """The ranks that are held against each other: of a large job those that differ."""
        known = self.job.ranks
        if len(known) <= MOST_COMPARED:
            return list(known)
        graph, some = self.graph, [*self.ended]
        for wait_point, missing in graph.missing.items():
            some += [*missing[:FEW], *(wait.rank for wait in graph.at[wait_point][:FEW])]
            if len(some) > MOST_COMPARED:
                break
        ranks = (rank for rank in (*some, *known) if rank in known)
        return list(islice(dict.fromkeys(ranks), MOST_COMPARED))

    def activity(self, rank: int) -> Activity:
        """What a rank does, or did when it was ended from outside."""
        found = self._activities.get(rank)
        if found is None:
            found = self._activities[rank] = self._activity(rank)
        return found

    def has_returned(self, rank: int) -> bool:
        """Whether the program of a rank that lives is over (facts/awaited.py)."""
        return (
            rank in self.job.ranks and rank not in self.ended and has_returned(self.job.ranks[rank])
        )

    def doing_by_line(self, ranks: Sequence[int]) -> list[tuple[tuple[int, ...], Activity]]:
        """What some ranks do, those of one line together, of the first few lines."""
        by_line: dict[tuple[str, int] | None, list[int]] = {}
        for rank in ranks[:MOST_COMPARED]:
            site = self.activity(rank).site
            by_line.setdefault((site.file, site.line) if site else None, []).append(rank)
        if len(by_line) == 1:
            return [(tuple(ranks), self.doing(ranks[0]))]
        return [(tuple(some), self.doing(some[0])) for some in islice(by_line.values(), FEW)]

    def doing_beside(self, rank: int, waits: Iterable[Wait]) -> Activity | None:
        """What a rank does in a thread of its own, where only that of others waits for it."""
        known = ((self.job.ranks.get(wait.rank), wait.record) for wait in waits)
        peer, record = next(((one, made) for one, made in known if made is not None), (None, None))
        if peer is None or record is None or rank not in self.job.ranks or rank in self.ended:
            return None
        thread = same_thread(peer, record.thread, self.job.ranks[rank])
        if thread is None:
            return None
        site = innermost_user_site(thread.frames, self.texts)
        return Activity(Reason.USER_CODE, site, running=thread.active)

    def doing(self, rank: int) -> Activity:
        """What a rank does, with what its own line waits for."""
        found = self.activity(rank)
        if found.reason is Reason.STORE_WAIT and (keys := awaited_keys(self.job.ranks[rank])):
            instead = nearest(self.job.ranks, keys)
            return replace(found, blocked=Blocked(On.KEY, key_text(keys), instead=instead))
        if found.reason not in (Reason.USER_CODE, Reason.EXCEPTION_HANDLING):
            return found
        if rank not in self._blocked:
            known = (
                peer
                for number, peer in self.job.ranks.items()
                if number != rank and peer.threads and number not in self.ended
            )
            peers = tuple(islice(known, MOST_COMPARED))
            self._blocked[rank] = blocked(
                self.job.ranks[rank], peers, self.texts, self.source.program
            )
        wait = self._blocked[rank]
        if found.reason is Reason.USER_CODE:
            return replace(found, blocked=wait)
        # What a handler waits for is its own affair, but where it goes back to what has raised.
        again = wait is not None and wait.on is On.RETRY
        return replace(found, reason=Reason.USER_CODE, blocked=wait) if again else found

    def handled_by(self, ranks: Collection[int]) -> str:
        """The exception that some ranks handle and no other does, by its name; empty for none."""
        names = {self.job.ranks[rank].handling if rank in self.job.ranks else "" for rank in ranks}
        if len(names) != 1 or "" in names:
            return ""
        known = self.job.ranks.items()
        others = {one.handling for rank, one in known if rank not in ranks}
        return "" if names & others else names.pop()

    def exception_of(self, ranks: Collection[int]) -> Mark | None:
        """The exception that some ranks handle and no other does, as one of them tells of it."""
        name = self.handled_by(ranks)
        marks = (mark for rank in ranks for mark in self.job.ranks[rank].marks) if name else ()
        known = [m for m in marks if m.kind == HANDLES and m.text.partition(": ")[0] == name]
        return min(known, key=lambda mark: mark.age_s, default=None)

    def thread_that_died(self, ranks: Collection[int]) -> Mark | None:
        """The thread that an exception ended on some ranks, and on no other."""
        had = {number for number, one in self.job.ranks.items() if _died(one)}
        if not had or had != {*ranks}:
            return None
        return min(_died(self.job.ranks[min(had)]), key=lambda mark: mark.age_s)

    def is_frozen(self, rank: int) -> bool:
        """Whether nothing of a rank runs, not even what works on its collectives."""
        known = rank in self.job.ranks and rank not in self.ended
        return known and self.activity(rank).reason in _FROZEN

    def fault(self, rank: int) -> Fault | None:
        """What has gone wrong with the GPU of a rank, not long before somebody waited."""
        snapshot = self.job.ranks.get(rank)
        if snapshot is None or snapshot.gpu is None:
            return None
        if self._within_s is None:
            waits = (seconds(wait.age_s) for waits in self.graph.at.values() for wait in waits)
            failed = (end for end in self.ended.values() if end.how is not How.CLEAN)
            ages = chain(waits, (seconds(end.age_s) for end in failed))
            self._within_s = max(ages, default=0.0) + MARGIN_S
        found = gpu_fault(snapshot.gpu, self._within_s)
        # What a program did on a GPU that ranks share may have been another one's.
        told = found is None or found.sure or rank in self.ended or not self._shares(snapshot.gpu)
        return found if told else None

    def _shares(self, gpu: GpuState) -> bool:
        """Whether several ranks are on a GPU."""
        on_it = (one for one in self.job.ranks.values() if one.gpu and one.gpu.uuid == gpu.uuid)
        return len(list(islice(on_it, 2))) > 1

    def _activity(self, rank: int) -> Activity:
        found, fault = self._activity_without_fault(rank), self.fault(rank)
        if fault is None or found.interrupted or found.reason in _FROZEN:
            return found
        if fault.sure or found.reason in _UNEXPLAINED:
            return replace(found, reason=Reason.GPU_FAULT, fault=fault.what, sure=fault.sure)
        return found

    def _activity_without_fault(self, rank: int) -> Activity:
        snapshot = self.job.ranks[rank]
        if rank in self.stuck:
            stuck = self.stuck[rank]
            site = self.site_at(rank, stuck.place) if stuck.place is not None else None
            return Activity(Reason.GPU_KERNEL, site, sure=stuck.sure)
        if rank not in self.ended:
            return activity(snapshot, self.texts)
        # It was ended from outside: the exception says where that was.
        site = snapshot.exception.site if snapshot.exception else None
        return Activity(Reason.UNKNOWN, with_source(site, self.texts), interrupted=True)

    def stack(self, rank: int) -> list[Frame]:
        """User frames of the rank's program, outermost first; empty if unknown."""
        snapshot = self.job.ranks.get(rank)
        thread = program_thread(snapshot) if snapshot else None
        return user_frames(thread.frames)[::-1] if thread else []

    def site_at(self, rank: int, place: Place) -> Site | None:
        """The user's line that entered a place, with its text."""
        record = self.job.record(rank, place)
        if record is not None and record.site is not None:
            return self._with_call(rank, with_source(record.site, self.texts))
        if record is not None and self._is_apart(rank, record):
            return None
        site = with_source(self._raised_at(rank), self.texts) or self.waiting_site(rank)
        return None if site is None or self._is_of_a_later_call(rank, place, site) else site

    def _is_of_a_later_call(self, rank: int, place: Place, site: Site) -> bool:
        """Whether a rank has come to a line only after a place, by a call that is recorded."""
        here = (site.file, site.line)
        for _, record in reversed(self.job.ops.get(rank, ())):
            if self.job.gid(record.group) == place.gid and record.seq <= place.seq:
                return False
            if record.site is not None and (record.site.file, record.site.line) == here:
                return True
        return False

    def _is_apart(self, rank: int, record: OpRecord) -> bool:
        """Whether a thread that Python started made a call: the main one tells nothing of it."""
        threads = self.job.ranks[rank].threads or ()
        frames = next((thread.frames for thread in threads if thread.tid == record.thread), ())
        return bool(frames) and frames[-1].file.endswith("/threading.py")

    def _raised_at(self, rank: int) -> Site | None:
        """The line at which a peer's end threw a rank out of what C++ had issued."""
        end = self.ended.get(rank)
        return end.exception.site if end is not None and end.exception is not None else None

    def site_of_line(self, file: str, number: int) -> Site:
        """A line of the user's, with its text."""
        site = Site(file, number, "")
        return with_source(site, self.texts) or site

    def waiting_site(self, rank: int) -> Site | None:
        """The innermost user line of the rank's stack."""
        snapshot = self.job.ranks.get(rank)
        thread = program_thread(snapshot) if snapshot else None
        return innermost_user_site(thread.frames, self.texts) if thread else None

    def runs_on_at(self, rank: int) -> Site | None:
        """The user's line that a rank is at whose program has failed, as in an excepthook."""
        snapshot = self.job.ranks.get(rank)
        return self.waiting_site(rank) if snapshot is not None and snapshot.process.alive else None

    def wait_site(self, wait: Wait) -> Site | None:
        """The user's line of a wait; of one that is over the one at which it raised."""
        found = wait.site or (self._raised_at(wait.rank) if wait.over else None)
        if found is None and not wait.over:
            return self.waiting_site(wait.rank)
        return with_source(found, self.texts)

    def sites_now(self, ranks: Sequence[int], waits: Iterable[Wait] = ()) -> dict[int, Site]:
        """The lines that ranks wait at, or are at instead, where these are known.

        waits: those that it is about, of any of the ranks.
        """
        these = {wait.rank: wait for wait in waits}
        found = {}
        for rank in ranks[:MOST_COMPARED]:
            own = [these[rank]] if rank in these else self.graph.by_rank.get(rank, ())
            site = next((at for wait in own if (at := self.wait_site(wait)) is not None), None)
            if site is None and rank in self.job.ranks and rank not in self.ended:
                site = self.activity(rank).site
            if site is not None:
                found[rank] = site
        return found

    def sites_at(self, ranks: Sequence[int], place: Place) -> dict[int, Site]:
        """The lines at which ranks entered a place, where these are known."""
        known = ((rank, self.site_at(rank, place)) for rank in ranks[:MOST_COMPARED])
        return {rank: site for rank, site in known if site is not None}

    def victims_site(self, waits: Iterable[Wait]) -> Site | None:
        """The line that most of those who wait are at."""
        at = {wait.rank: site for wait in waits if (site := self.wait_site(wait)) is not None}
        most = _most_common(Counter(at.values()))
        rank = next((rank for rank, site in at.items() if site == most), -1)
        return self._with_call(rank, most)

    def _with_call(self, rank: int, site: Site | None) -> Site | None:
        """A site with what it has called, where the rank's stack is still there."""
        if site is None or site.call is not None:
            return site
        here = self.waiting_site(rank)
        same = here is not None and (here.file, here.line) == (site.file, site.line)
        return replace(site, call=here.call) if here is not None and same else site

    def waits_at(self, wait_point: WaitPoint | None) -> tuple[Wait, ...]:
        """All waits at a wait point."""
        return tuple(self.graph.at.get(wait_point, ())) if wait_point is not None else ()

    def direct(self, wait_point: WaitPoint | None) -> tuple[int, ...]:
        """The ranks that wait at a wait point itself."""
        return tuple(sorted({wait.rank for wait in self.waits_at(wait_point)}))

    def victims_of(
        self, culprits: Iterable[int], wait_points: Iterable[WaitPoint] = ()
    ) -> tuple[int, ...]:
        """All ranks that wait, however indirectly, for the culprits or at the wait points."""
        guilty = set(culprits)
        return tuple(sorted(held_up(self.graph, [*guilty, *wait_points]) - guilty))

    def where(self, wait_point: WaitPoint | None) -> str:
        """A wait point as people read it."""
        if wait_point is None:
            return ""
        return wait_point_text(
            self.job, wait_point, self.op_at(self.waits_at(wait_point), wait_point)
        )

    def op_at(self, waits: Sequence[Wait], wait_point: WaitPoint | None) -> str:
        """What most of those who wait at a wait point call it."""
        names = Counter(wait.op for wait in waits if wait.op)
        if not names and isinstance(wait_point, Place):
            records = self.job.places(wait_point.gid).get(wait_point.seq, {})
            names = Counter(record.op for record in records.values() if record.op)
        return _most_common(names) or ""

    def collective(self, wait_point: WaitPoint | None, waits: Sequence[Wait]) -> Collective | None:
        """The call that a finding is about, as those who wait know it."""
        if isinstance(wait_point, Place):
            records = [wait.record for wait in waits if wait.record is not None]
            op = self.op_at(waits, wait_point)
            record = next((r for r in records if r.op == op), None)
            dtype, shape = (record.dtype, record.shape) if record else ("", ())
            return Collective(op or UNNAMED, wait_point.seq, dtype, shape)
        if isinstance(wait_point, Channel):
            record = next((wait.record for wait in waits if wait.record is not None), None)
            if record is not None:
                return Collective(record.op, record.seq, record.dtype, record.shape)
        return None


def _most_common(counts: Counter[_T]) -> _T | None:
    """The most frequent; among equals the first in the order of their text."""
    return min(counts, key=lambda item: (-counts[item], repr(item)), default=None)


def _died(rank: RankSnapshot) -> list[Mark]:
    """The threads of a rank that exceptions ended."""
    return [mark for mark in rank.marks if mark.kind == THREAD_DIED and mark.site is not None]
