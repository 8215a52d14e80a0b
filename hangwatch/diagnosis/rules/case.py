"""The material of the rules: the job, its ended ranks, the wait-for graph, and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import TypedDict, TypeVar

from hangwatch.diagnosis import timing
from hangwatch.diagnosis.facts.activity import Activity, activity
from hangwatch.diagnosis.facts.alignment import Departures, departures
from hangwatch.diagnosis.facts.awaited import On, has_returned, same_thread
from hangwatch.diagnosis.facts.blocked import Blocked, blocked
from hangwatch.diagnosis.facts.devices import Stuck
from hangwatch.diagnosis.facts.endings import Ending, How
from hangwatch.diagnosis.facts.gpu_faults import Fault, gpu_fault
from hangwatch.diagnosis.facts.history import HANDLES, THREAD_DIED
from hangwatch.diagnosis.facts.job import NEW_GROUP, Job, seconds
from hangwatch.diagnosis.facts.stores import awaited_keys, nearest
from hangwatch.diagnosis.facts.wait_points import UNNAMED, Channel, Setup, Slot, Wait, WaitPoint
from hangwatch.diagnosis.graph import Graph, held_up
from hangwatch.diagnosis.source.files import Source
from hangwatch.diagnosis.text.phrases import Ranks, at_line, key_text, wait_point_text
from hangwatch.diagnosis.text.wording import Scene, Text
from hangwatch.model.calls import Site
from hangwatch.model.frames import innermost_user_site, program_thread, user_frames, with_source
from hangwatch.model.kinds import Certainty, Kind, Reason, What
from hangwatch.model.snapshot import Frame, Mark, OpRecord
from hangwatch.model.verdict import Collective, RootCause
from hangwatch.text import verb

_T = TypeVar("_T")
MOST_COMPARED = 128
"""Most ranks whose calls are all compared."""
FEW = 4
"""Most ranks that represent all that wait at one point, or are missing there."""
DIVERGED = frozenset(
    {
        Kind.OP_MISMATCH,
        Kind.SUBSET_ENTERED,
        Kind.FINISHED_EARLY,
        Kind.MISSING_PEER,
        Kind.ORDER_INVERSION,
    }
)
"""Kinds in which two sides are in different calls, and one left the common sequence."""
_FROZEN = frozenset({Reason.STOPPED, Reason.DEBUGGER})
_UNEXPLAINED = frozenset({Reason.UNKNOWN, Reason.GPU_KERNEL})


@dataclass(frozen=True, slots=True)
class Finding:
    """One root cause."""

    kind: Kind
    certainty: Certainty
    culprits: Ranks
    victims: Ranks
    text: Text
    reason: Reason = Reason.USER_CODE
    final: bool = False
    """No future event lets the waiting ranks continue."""
    wait_point: WaitPoint | None = None
    collective: Collective | None = None
    site: Site | None = None
    victim_site: Site | None = None
    waits: tuple[Wait, ...] = ()
    """The waits of its victims and its culprits."""
    ended: Ranks = ()
    """Culprits that have ended."""
    hang: Certainty | None = None
    """The certainty that it hangs, if higher than that of the culprits."""
    different_calls: bool = False
    """The culprits and the others are in different calls of the program, of one operation."""
    differs: str = ""
    """The one respect in which their calls differ (facts/signatures.py: Differs)."""
    undecided: Ranks = ()
    """The ranks that its text accuses, if any of its culprits may be at fault."""
    against: Ranks = ()
    """The ranks that its culprits are compared with first."""
    what: What | None = None
    """The cause, if the rule that made the finding knows it."""
    settled: bool = False
    """Neither the calls of all ranks nor the source can change the culprits."""

    @property
    def makes_a_group(self) -> bool:
        """Return True if it is about the creation of a group."""
        point = self.wait_point
        setting_up = isinstance(point, Setup) and point.call == NEW_GROUP
        return setting_up or self.what is What.GROUP_CREATION

    def cause(self, what: What, at_most: Certainty, site: Site | None, why: str) -> RootCause:
        """A cause that is no surer than the finding, and whose explanation is its evidence."""
        return RootCause(what, self.certainty.at_most(at_most), site, why, (why,))

    def of_any(self, ranks: Iterable[int]) -> Finding:
        """The finding with all of these ranks as culprits, since any may be at fault."""
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
        """The finding with unproved culprits; that it hangs stays as sure as it is."""
        sure = self.certainty.at_most(Certainty.LIKELY)
        return replace(self, certainty=sure, hang=self.hang or self.certainty)


class About(TypedDict):
    """The fields of a finding that follow from its wait point and its scene."""

    culprits: Ranks
    victims: Ranks
    wait_point: WaitPoint | None
    collective: Collective | None
    site: Site | None
    victim_site: Site | None
    waits: tuple[Wait, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """A job under judgement."""

    job: Job
    ended: Mapping[int, Ending]
    graph: Graph
    source: Source
    disputed: Mapping[int, int]
    stuck: Mapping[int, Stuck] = field(default_factory=dict)
    """Ranks whose device is stuck itself."""
    _activities: dict[int, Activity] = field(default_factory=dict)
    _blocked: dict[int, Blocked | None] = field(default_factory=dict)

    @property
    def texts(self) -> Mapping[str, str]:
        """Text of the user's files."""
        return self.job.snapshot.sources

    def about(
        self,
        wait_point: WaitPoint | None,
        scene: Scene,
        victims: Ranks | None = None,
        waits: tuple[Wait, ...] | None = None,
    ) -> About:
        """The parties of a finding, its lines, its call and its waits.

        Unless given, all that wait for the culprits are victims, and the waits are those there.
        """
        waits = self.waits_at(wait_point) if waits is None else waits
        return About(
            culprits=scene.culprits,
            victims=self.victims_of(scene.culprits) if victims is None else victims,
            wait_point=wait_point,
            collective=self.collective(wait_point, waits),
            site=scene.site,
            victim_site=scene.other_site,
            waits=waits,
        )

    def scene(
        self,
        wait_point: WaitPoint | None,
        culprits: Ranks,
        site: Site | None = None,
        others: Ranks | None = None,
        other_site: Site | None = None,
    ) -> Scene:
        """Both sides at a wait point, with the line of each side and of each rank.

        The other side is, unless given, the ranks that wait there, at the line of most of them.
        """
        waits = self.waits_at(wait_point)
        if others is None:
            others, other_site = self.direct(wait_point), self.victims_site(waits)
        lines = self.sites_now(others, waits) | self.sites_now(culprits, waits)
        return Scene(culprits, others, self.where(wait_point), site, other_site, lines)

    @cached_property
    def departures(self) -> Departures:
        """The ranks that left the common sequence of calls, from the calls of all ranks."""
        return departures(self.job, self.ended, self.source, self._compared())

    def _compared(self) -> list[int]:
        """The ranks to compare with each other: of a large job the ones that differ."""
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
        """The activity of a rank, or its last one when it was terminated externally."""
        found = self._activities.get(rank)
        if found is None:
            found = self._activities[rank] = self._activity(rank)
        return found

    def has_returned(self, rank: int) -> bool:
        """Return True if the program of a rank that lives is over (facts/awaited.py)."""
        return (
            rank in self.job.ranks and rank not in self.ended and has_returned(self.job.ranks[rank])
        )

    def doing_by_line(self, ranks: Sequence[int]) -> list[tuple[tuple[int, ...], Activity]]:
        """The activities of some ranks, by line, of the first few lines."""
        by_line: dict[tuple[str, int] | None, list[int]] = {}
        for rank in ranks[:MOST_COMPARED]:
            site = self.activity(rank).site
            by_line.setdefault((site.file, site.line) if site else None, []).append(rank)
        if len(by_line) == 1:
            return [(tuple(ranks), self.doing(ranks[0]))]
        return [(tuple(some), self.doing(some[0])) for some in islice(by_line.values(), FEW)]

    def doing_in_thread(self, rank: int, waits: Iterable[Wait]) -> Activity | None:
        """The activity of a rank's thread, where only the same thread of others waits for it."""
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
        """The activity of a rank, with the wait of its own line."""
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
        # The wait of a handler is not of interest, unless it retries the code that raised.
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
        """The newest mark of the exception that some ranks handle and no other does."""
        name = self.handled_by(ranks)
        marks = (mark for rank in ranks for mark in self.job.ranks[rank].marks) if name else ()
        known = [m for m in marks if m.kind == HANDLES and m.text.partition(": ")[0] == name]
        return min(known, key=lambda mark: mark.age_s, default=None)

    def thread_that_died(self, ranks: Collection[int]) -> Mark | None:
        """The thread that an exception ended on some ranks, and on no other."""
        marks = {
            number: died
            for number, rank in self.job.ranks.items()
            if (died := [m for m in rank.marks if m.kind == THREAD_DIED and m.site is not None])
        }
        if not marks or marks.keys() != {*ranks}:
            return None
        return min(marks[min(marks)], key=lambda mark: mark.age_s)

    def is_frozen(self, rank: int) -> bool:
        """Return True if the whole process of a rank is stopped, even communication threads."""
        known = rank in self.job.ranks and rank not in self.ended
        return known and self.activity(rank).reason in _FROZEN

    def fault(self, rank: int) -> Fault | None:
        """A fault of a rank's GPU, not long before the waits began."""
        snapshot = self.job.ranks.get(rank)
        if snapshot is None or snapshot.gpu is None:
            return None
        fault = gpu_fault(snapshot.gpu, self._within_s)
        if fault is None or fault.sure or rank in self.ended:
            return fault
        # A program's fault on a GPU that ranks share may be another rank's.
        gpus = (one.gpu for one in self.job.ranks.values() if one.gpu)
        on_it = (gpu for gpu in gpus if gpu.uuid == snapshot.gpu.uuid)
        return fault if len(list(islice(on_it, 2))) == 1 else None

    @cached_property
    def _within_s(self) -> float:
        """The age of the first wait or failure, with a margin."""
        waits = (seconds(wait.age_s) for waits in self.graph.at.values() for wait in waits)
        failed = (end for end in self.ended.values() if end.how is not How.CLEAN)
        ages = chain(waits, (seconds(end.age_s) for end in failed))
        return max(ages, default=0.0) + timing.RUN_AHEAD_S

    def _activity(self, rank: int) -> Activity:
        found, fault = self._activity_without_fault(rank), self.fault(rank)
        if fault is None or found.interrupted or found.reason in _FROZEN:
            return found
        if not fault.sure and found.reason not in _UNEXPLAINED:
            return found
        return replace(found, reason=Reason.GPU_FAULT, fault=fault.what, sure=fault.sure)

    def _activity_without_fault(self, rank: int) -> Activity:
        snapshot = self.job.ranks[rank]
        if rank in self.stuck:
            stuck = self.stuck[rank]
            site = self.site_at(rank, stuck.slot) if stuck.slot is not None else None
            return Activity(Reason.GPU_KERNEL, site, sure=stuck.sure)
        if rank not in self.ended:
            return activity(snapshot, self.texts)
        # It was terminated externally: the exception shows the line.
        site = snapshot.exception.site if snapshot.exception else None
        return Activity(Reason.UNKNOWN, with_source(site, self.texts), interrupted=True)

    def stack(self, rank: int) -> list[Frame]:
        """User frames of the rank's program, outermost first; empty if unknown."""
        snapshot = self.job.ranks.get(rank)
        thread = program_thread(snapshot) if snapshot else None
        return user_frames(thread.frames)[::-1] if thread else []

    def site_at(self, rank: int, slot: Slot) -> Site | None:
        """The user's line that entered a slot, with its text."""
        record = self.job.record(rank, slot)
        if record is not None and record.site is not None:
            return self._with_call(rank, with_source(record.site, self.texts))
        if record is not None and self._is_apart(rank, record):
            return None
        site = with_source(self._raised_at(rank), self.texts) or self.waiting_site(rank)
        return None if site is None or self._is_of_a_later_call(rank, slot, site) else site

    def _is_of_a_later_call(self, rank: int, slot: Slot, site: Site) -> bool:
        """Return True if a recorded call shows that a rank reached a line only after a slot."""
        here = (site.file, site.line)
        for _, record in reversed(self.job.ops.get(rank, ())):
            if self.job.gid(record.group) == slot.gid and record.seq <= slot.seq:
                return False
            if record.site is not None and (record.site.file, record.site.line) == here:
                return True
        return False

    def _is_apart(self, rank: int, record: OpRecord) -> bool:
        """Return True if a thread that Python started made a call: the main stack is another."""
        threads = self.job.ranks[rank].threads or ()
        frames = next((thread.frames for thread in threads if thread.tid == record.thread), ())
        return bool(frames) and frames[-1].file.endswith("/threading.py")

    def _raised_at(self, rank: int) -> Site | None:
        """The line at which a rank failed in a call that C++ issued, because a peer had ended."""
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

    def wait_site(self, wait: Wait) -> Site | None:
        """The user's line of a wait; of one that is over the line that raised."""
        found = wait.site or (self._raised_at(wait.rank) if wait.ended else None)
        if found is None and not wait.ended:
            return self.waiting_site(wait.rank)
        return with_source(found, self.texts)

    def sites_now(self, ranks: Sequence[int], waits: Iterable[Wait] = ()) -> dict[int, Site]:
        """The lines that ranks wait at, or are at instead, where these are known.

        waits: the waits in question, of any of the ranks.
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

    def sites_at(self, ranks: Sequence[int], slot: Slot) -> dict[int, Site]:
        """The lines at which ranks entered a slot, where these are known."""
        known = ((rank, self.site_at(rank, slot)) for rank in ranks[:MOST_COMPARED])
        return {rank: site for rank, site in known if site is not None}

    def site_of(self, rank: int) -> Site | None:
        """The line that a rank waits at, or is at instead, or was at when it was ended."""
        site = self.sites_now((rank,)).get(rank)
        if site is None and rank in self.ended and rank in self.job.ranks:
            return self.activity(rank).site
        return site

    def waiting_text(self, ranks: Ranks) -> str:
        """``they wait in all_reduce #3 at train.py:41``, of ranks that wait."""
        wait = self.graph.by_rank[ranks[0]][0]
        they = verb(ranks, "it waits", "they wait")
        return f"{they} in {self.where(wait.wait_point)}{at_line(self.wait_site(wait))}"

    def victims_site(self, waits: Iterable[Wait]) -> Site | None:
        """The line at which most of the waiting ranks are."""
        at = {wait.rank: site for wait in waits if (site := self.wait_site(wait)) is not None}
        most = _most_common(Counter(at.values()))
        rank = next((rank for rank, site in at.items() if site == most), -1)
        return self._with_call(rank, most)

    def _with_call(self, rank: int, site: Site | None) -> Site | None:
        """A site with its call of a package, if the rank's stack is still there."""
        if site is None or site.call is not None:
            return site
        here = self.waiting_site(rank)
        same = here is not None and (here.file, here.line) == (site.file, site.line)
        return replace(site, call=here.call) if here is not None and same else site

    def waits_at(self, wait_point: WaitPoint | None) -> tuple[Wait, ...]:
        """All waits at a wait point."""
        return tuple(self.graph.at.get(wait_point, ())) if wait_point is not None else ()

    def records_at(self, wait_point: WaitPoint | None) -> Mapping[int, OpRecord]:
        """The known calls of a slot, by rank; empty for another wait point."""
        if not isinstance(wait_point, Slot):
            return {}
        return self.job.slots(wait_point.gid).get(wait_point.seq, {})

    def direct(self, wait_point: WaitPoint | None) -> Ranks:
        """The ranks that wait at a wait point itself."""
        return tuple(sorted({wait.rank for wait in self.waits_at(wait_point)}))

    def victims_of(self, culprits: Iterable[int], wait_points: Iterable[WaitPoint] = ()) -> Ranks:
        """All ranks that wait, however indirectly, for the culprits or at the wait points."""
        guilty = {*culprits}
        return tuple(sorted(held_up(self.graph, [*guilty, *wait_points]) - guilty))

    def where(self, wait_point: WaitPoint | None) -> str:
        """A wait point as people read it."""
        if wait_point is None:
            return ""
        op = self.op_at(self.waits_at(wait_point), wait_point)
        return wait_point_text(self.job, wait_point, op)

    def op_at(self, waits: Sequence[Wait], wait_point: WaitPoint | None) -> str:
        """The operation of a wait point, as most of the waiting ranks know it."""
        names = Counter(wait.op for wait in waits if wait.op)
        if not names:
            records = self.records_at(wait_point).values()
            names = Counter(record.op for record in records if record.op)
        return _most_common(names) or ""

    def collective(self, wait_point: WaitPoint | None, waits: Sequence[Wait]) -> Collective | None:
        """The call that a finding is about, as the waiting ranks know it."""
        if isinstance(wait_point, Slot):
            records = [wait.record for wait in waits if wait.record is not None]
            op = self.op_at(waits, wait_point)
            record = next((r for r in records if r.op == op), None)
            dtype, shape = (record.dtype, record.shape) if record else ("", ())
            return Collective(op or UNNAMED, wait_point.seq, dtype, shape)
        if isinstance(wait_point, Channel):
            record = next((wait.record for wait in waits if wait.record is not None), None)
            return collective_of(record) if record is not None else None
        return None


def name_of(record: OpRecord) -> str:
    """The operation that the program called, else the one that was issued."""
    return record.op or record.wire


def collective_of(record: OpRecord) -> Collective:
    """A recorded call, as it is reported."""
    return Collective(name_of(record), record.seq, record.dtype, record.shape)


def _most_common(counts: Counter[_T]) -> _T | None:
    """The most frequent; among equals the first in the order of their text."""
    return min(counts, key=lambda item: (-counts[item], repr(item)), default=None)
