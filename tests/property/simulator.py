"""A small model of ranks that communicate, in virtual time. It knows nothing of hangwatch.

Each rank runs a list of instructions. A collective completes once all members have
entered it alike, a broadcast's source without them; a send waits for its recv. Where
members disagree nobody goes on, or only some, as on gloo. All that happens is kept
with its time, so that the job can be looked at as it was at any moment.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random

NEVER = float("inf")
LATENCY_S = 0.0004
SCRIPT = "/home/u/train.py"


class Mode(StrEnum):
    """How a call is made."""

    BLOCK = "block"
    ASYNC = "async"
    CPP = "cpp"
    """By C++, which a wrapper in Python does not see: DDP's reducer."""


class Doing(StrEnum):
    """What a rank does that does not communicate."""

    USER = "user"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    HOLDS_GIL = "holds_gil"


class Busy(NamedTuple):
    """Own code, for so many seconds."""

    line: int
    seconds: float
    doing: Doing = Doing.USER


class Issue(NamedTuple):
    """A call of torch.distributed. ``group`` is an index; ``handle`` is for Join."""

    line: int
    group: int
    op: str
    mode: Mode = Mode.BLOCK
    size: int = 4
    dtype: str = "float32"
    root: int = -1
    peer: int = -1
    tag: int = 0
    handle: str = ""
    function: str = "main"
    """Of the innermost user frame; the line in it is ``inner`` where it is not main."""
    inner: int = 0

    @property
    def p2p(self) -> bool:
        return self.op in ("send", "recv", "isend", "irecv")

    @property
    def sends(self) -> bool:
        return self.op.endswith("send")


class Join(NamedTuple):
    """Wait for what was issued under these handles, in their order."""

    line: int
    handles: tuple[str, ...]
    by_cpp: bool = False


class SetUp(NamedTuple):
    """init_process_group, or new_group, which returns once all members are in it."""

    line: int
    call: str
    members: tuple[int, ...]
    group: int


class Raise(NamedTuple):
    """The user's code raises what nobody catches."""

    line: int
    type: str
    message: str


Instruction = Busy | Issue | Join | SetUp | Raise


@dataclass(slots=True, eq=False)
class Call:
    """One call as it happened. Times are NEVER for what has not happened."""

    rank: int
    issue: Issue
    seq: int
    issued_s: float
    blocked_s: float = NEVER
    done_s: float = NEVER
    returned_s: float = NEVER
    failed_s: float = NEVER


class End(NamedTuple):
    """How a rank ended. ``raised_s`` is before ``gone_s`` where an exception did it."""

    gone_s: float
    exit_code: int | None = 0
    signal: int | None = None
    type: str = ""
    message: str = ""
    line: int = 0
    raised_s: float = NEVER
    by_launcher: bool = False
    out_of_memory: bool = False


@dataclass(slots=True, eq=False)
class Rank:
    """A rank and its history."""

    number: int
    program: list[Instruction]
    at: int = 0
    turn: int = 0
    """Wakes it up once: what was meant for an earlier wait is out of date."""
    waits: Call | None = None
    in_setup: SetUp | None = None
    calls: list[Call] = field(default_factory=list)
    by_handle: dict[str, Call] = field(default_factory=dict)
    counts: dict[tuple[int, bool], int] = field(default_factory=lambda: defaultdict(int))
    trace: list[tuple[float, Instruction | None]] = field(default_factory=list)
    """When it came to each instruction; None for the end of the program."""
    set_ups: int = 0
    """Set-up calls so far: the name of the next group."""
    made: list[tuple[float, int, int]] = field(default_factory=list)
    """(when, name, group) of the groups that it is a member of."""
    stops: list[tuple[float, float]] = field(default_factory=list)
    end: End | None = None

    @property
    def set_up_at_once(self) -> bool:
        """Whether the program makes no groups: they are there from the beginning."""
        return not any(isinstance(s, SetUp) and s.call == "new_group" for s in self.program)

    def stopped(self, at_s: float) -> bool:
        """Whether it is stopped by a signal at that moment."""
        return any(since <= at_s < until for since, until in self.stops)


@dataclass(frozen=True, slots=True)
class Rules:
    """The backend and what else happens to the job."""

    peers_raise: bool = True
    """A lost peer raises, as on gloo; else its peers wait for ever, as on NCCL."""
    launcher_ends: bool = True
    stuck: tuple[int, int] | None = None
    """A (group, place) that never completes though all members are there alike ..."""
    passes: frozenset[int] = frozenset()
    """... but on these ranks."""
    leaky: bool = False
    """Sizes that differ let some members through."""
    kills: tuple[tuple[int, int, float, int], ...] = ()
    """(rank, instruction, seconds after it comes to it, signal)."""
    stops: tuple[tuple[int, int, float, float], ...] = ()
    """(rank, instruction, seconds after it comes to it, for how long)."""


class Simulation:
    """Runs to the point from which nothing will ever happen."""

    def __init__(
        self,
        programs: list[list[Instruction]],
        groups: list[tuple[int, ...]],
        rules: Rules,
        rng: Random,
    ) -> None:
        self.ranks = [Rank(number, program) for number, program in enumerate(programs)]
        self.groups = groups
        self.rules = rules
        self.ended_s = NEVER
        """When the last rank was gone."""
        self._rng = rng
        self._now_s = 0.0
        self._places: dict[tuple[int, int], dict[int, Call]] = defaultdict(dict)
        self._posted: dict[tuple[int, int, int, int, bool], deque[Call]] = defaultdict(deque)
        self._setups: dict[tuple[int, tuple[int, ...]], dict[int, float]] = defaultdict(dict)
        self._made: dict[int, int] = defaultdict(int)
        self._events: list[tuple[float, int, int, str, int]] = []
        self._ticket = 0

    def run(self) -> None:
        """Let everything happen."""
        for rank in self.ranks:
            self._at(self._rng.random() * 0.01, rank.number, "go")
        while self._events:
            self._now_s, _, number, what, value = heapq.heappop(self._events)
            rank = self.ranks[number]
            if what == "gone":
                self._gone(rank)
            elif rank.end is not None:
                continue
            elif what == "kill":
                self._end(rank, End(self._now_s, None, value))
            elif what == "term":
                self._end(rank, End(self._now_s, None, 15, by_launcher=True))
            elif what == "continue":
                self._continue(rank)
            elif value == rank.turn and not rank.stopped(self._now_s):
                self._go(rank)

    def _at(self, at_s: float, number: int, what: str, value: int = 0) -> None:
        self._ticket += 1
        value = self.ranks[number].turn if what == "go" else value
        heapq.heappush(self._events, (at_s, self._ticket, number, what, value))

    # --- One rank ---------------------------------------------------------------

    def _go(self, rank: Rank) -> None:
        """Run a rank until it has to wait."""
        call = rank.waits
        if call is not None:
            if call.failed_s <= self._now_s:
                self._raise(rank)
                return
            if call.done_s > self._now_s:
                return  # woken for something else
            call.returned_s = self._now_s
            rank.waits = None
        rank.turn += 1
        if rank.in_setup is not None:
            if rank.number in rank.in_setup.members:
                rank.made.append((self._now_s, rank.set_ups - 1, rank.in_setup.group))
            rank.in_setup = None
        while rank.end is None:
            if rank.at >= len(rank.program):
                rank.trace.append((self._now_s, None))
                self._end(rank, End(self._now_s + 0.001))
                return
            step = rank.program[rank.at]
            self._strike(rank)
            if not rank.trace or rank.trace[-1][1] is not step or not isinstance(step, Join):
                rank.trace.append((self._now_s, step))
            if self._waits_in(rank, step):
                return

    def _strike(self, rank: Rank) -> None:
        """What happens to it from outside, now or a moment after it comes to this."""
        for number, at, after_s, signal in self.rules.kills:
            if (number, at) == (rank.number, rank.at):
                self._at(self._now_s + after_s, number, "kill", signal)
        for number, at, after_s, for_s in self.rules.stops:
            if (number, at) == (rank.number, rank.at) and not rank.stops:
                since_s = self._now_s + after_s
                rank.stops.append((since_s, since_s + for_s))
                self._at(since_s + for_s, number, "continue")

    def _waits_in(self, rank: Rank, step: Instruction) -> bool:
        if isinstance(step, Join):
            return self._join(rank, step)
        rank.at += 1
        if isinstance(step, Issue):
            call = self._issue(rank, step)
            if step.mode is Mode.BLOCK:
                return self._wait(rank, call)
            return False
        if isinstance(step, Busy):
            if step.seconds < NEVER:
                self._at(self._now_s + step.seconds, rank.number, "go")
            return True
        if isinstance(step, SetUp):
            return self._set_up(rank, step)
        end = End(
            self._now_s + 0.2 * self._rng.random(),
            1,
            type=step.type,
            message=step.message,
            line=step.line,
            raised_s=self._now_s,
        )
        self._end(rank, end)
        return True

    def _join(self, rank: Rank, step: Join) -> bool:
        for handle in step.handles:
            call = rank.by_handle.get(handle)
            if call is not None:
                del rank.by_handle[handle]
                return self._wait(rank, call)
        rank.at += 1
        return False

    def _wait(self, rank: Rank, call: Call) -> bool:
        """Always gives way, so that all happens in the order of time."""
        call.blocked_s = min(call.blocked_s, self._now_s)
        rank.waits = call
        ready_s = min(call.done_s, call.failed_s)
        if ready_s < NEVER:
            self._at(max(ready_s, self._now_s), rank.number, "go")
        return True

    def _set_up(self, rank: Rank, step: SetUp) -> bool:
        """All members have to make the group, under one name, which counts the groups."""
        rank.in_setup = step
        rank.set_ups += 1
        if rank.number not in step.members:
            self._at(self._now_s + LATENCY_S, rank.number, "go")
            return True
        there = self._setups[rank.set_ups, step.members]
        there[rank.number] = self._now_s
        if len(there) == len(step.members):
            for member in step.members:
                self._at(self._now_s + LATENCY_S, member, "go")
        return True

    # --- Calls ------------------------------------------------------------------

    def _issue(self, rank: Rank, issue: Issue) -> Call:
        count = (issue.group, issue.p2p)
        rank.counts[count] += 1
        call = Call(rank.number, issue, rank.counts[count], self._now_s)
        rank.calls.append(call)
        if issue.handle:
            rank.by_handle[issue.handle] = call
        if issue.p2p:
            self._match(call)
        else:
            place = self._places[issue.group, call.seq]
            place[rank.number] = call
            self._settle(issue.group, call.seq)
        if call.done_s == NEVER and self._hopeless(call):
            self._fail(call)
        return call

    def _match(self, call: Call) -> None:
        issue = call.issue
        if self.ranks[issue.peer].end is not None:
            return
        ends = (call.rank, issue.peer) if issue.sends else (issue.peer, call.rank)
        key = (issue.group, *ends, issue.tag)
        others = self._posted[(*key, not issue.sends)]
        if others:
            other = others.popleft()
            self._complete(call)
            self._complete(other)
        else:
            self._posted[(*key, issue.sends)].append(call)

    def _settle(self, group: int, seq: int) -> None:
        """Complete a place for those for whom it is complete."""
        members = self.groups[group]
        place = self._places[group, seq]
        calls = list(place.values())
        if any(
            self.ranks[member].stopped(self._now_s)
            and not (member in place and place[member].done_s < NEVER)
            for member in members
        ):
            return
        first = calls[0].issue
        rooted = (first.op, first.root) if first.op in ("broadcast", "reduce", "gather") else None
        everyone = len(place) == len(members)
        if not everyone and rooted is None:
            return
        if any(_signature(call.issue) != _signature(first) for call in calls):
            self._leak(calls, everyone=everyone)
            return
        if self.rules.stuck == (group, seq):
            for call in calls:
                if everyone and call.rank in self.rules.passes:
                    self._complete(call)
            return
        for call in calls:
            source = rooted is not None and rooted[0] == "broadcast" and call.rank == rooted[1]
            if everyone or source or (rooted is not None and rooted[1] in place):
                # The root of a gather or a reduce needs all; a broadcast's needs nobody.
                gathers = rooted is not None and rooted[0] != "broadcast"
                if everyone or not (gathers and call.rank == (rooted or ("", -1))[1]):
                    self._complete(call)

    def _leak(self, calls: list[Call], *, everyone: bool) -> None:
        """Members that differ in size alone: some may get through."""
        if len({call.issue.op for call in calls}) > 1 or not (self.rules.leaky and everyone):
            return
        for call in calls:
            if self._rng.random() < 0.5:
                self._complete(call)

    def _continue(self, rank: Rank) -> None:
        for (group, seq), place in list(self._places.items()):
            if rank.number in self.groups[group] and any(c.done_s == NEVER for c in place.values()):
                self._settle(group, seq)
        if rank.waits is not None:
            self._wait(rank, rank.waits)
        elif rank.in_setup is None or self._all_there(rank, rank.in_setup):
            self._go(rank)

    def _all_there(self, rank: Rank, step: SetUp) -> bool:
        return len(self._setups[rank.set_ups, step.members]) == len(step.members)

    def _complete(self, call: Call) -> None:
        if call.done_s < NEVER or call.failed_s < NEVER:
            return
        call.done_s = self._now_s + LATENCY_S * (1 + self._rng.random())
        self._wake(call)

    def _wake(self, call: Call) -> None:
        if self.ranks[call.rank].waits is call:
            self._at(min(call.done_s, call.failed_s), call.rank, "go")

    # --- Ends -------------------------------------------------------------------

    def _hopeless(self, call: Call) -> bool:
        """Whether a peer that it needs is gone, and that raises."""
        if not self.rules.peers_raise:
            return False
        issue = call.issue
        if issue.p2p:
            return self._is_gone(issue.peer)
        place = self._places[issue.group, call.seq]
        return any(
            self._is_gone(peer) and not (peer in place and place[peer].done_s < NEVER)
            for peer in self.groups[issue.group]
        )

    def _is_gone(self, number: int) -> bool:
        end = self.ranks[number].end
        return end is not None and end.gone_s <= self._now_s

    def _fail(self, call: Call) -> None:
        call.failed_s = self._now_s + 0.001 + 0.01 * self._rng.random()
        self._wake(call)

    def _raise(self, rank: Rank) -> None:
        """A call has failed because a peer is gone."""
        message = (
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
            "[127.0.0.1]:31337"
        )
        line = rank.trace[-1][1].line if rank.trace[-1][1] is not None else 0
        gone_s = self._now_s + 0.05 + 0.5 * self._rng.random()
        end = End(gone_s, 1, type="RuntimeError", message=message, line=line, raised_s=self._now_s)
        self._end(rank, end)

    def _end(self, rank: Rank, end: End) -> None:
        rank.end = end
        self._at(end.gone_s, rank.number, "gone")

    def _gone(self, rank: Rank) -> None:
        """Its connections are closed, and the launcher hears of it."""
        assert rank.end is not None
        ends = [other.end for other in self.ranks]
        if all(end is not None and end.gone_s <= self._now_s for end in ends):
            self.ended_s = self._now_s
        if self.rules.peers_raise:
            for other in self.ranks:
                for call in other.calls if other.end is None else ():
                    open_still = call.done_s == NEVER and call.failed_s == NEVER
                    if open_still and self._hopeless(call):
                        self._fail(call)
        if rank.end.exit_code != 0 and not rank.end.by_launcher and self.rules.launcher_ends:
            delay_s = 0.1 + 2 * self._rng.random()
            for other in self.ranks:
                if other.end is None:
                    self._at(self._now_s + delay_s, other.number, "term")


def _signature(issue: Issue) -> tuple[object, ...]:
    size = 0 if issue.op in ("all_gather", "barrier") else issue.size
    return issue.op, size, issue.dtype, issue.root
