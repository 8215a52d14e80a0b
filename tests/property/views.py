"""What hangwatch would see of a simulated job at a moment.

Pages keep the last calls that Python issued, and counters that are sampled; the Flight
Recorder knows what C++ issued; stacks are those of living processes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator import NEVER, SCRIPT, Busy, Call, Doing, Issue, Join, Mode, Rank, SetUp, Simulation

from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import ExceptionRecord
from hangwatch.model.snapshot import (
    Frame,
    GroupProgress,
    JobSnapshot,
    NewGroup,
    OpRecord,
    ProcessState,
    RankSnapshot,
    ThreadStack,
)

if TYPE_CHECKING:
    from training import Layout

TORCH = "/usr/lib/python3/dist-packages/torch"
PERIOD_S = 0.5
"""Of the sampler."""
_BACKWARD = (
    Frame(f"{TORCH}/autograd/graph.py", 979, "_engine_run_backward"),
    Frame(f"{TORCH}/_tensor.py", 623, "backward"),
)
_C10D = Frame(f"{TORCH}/distributed/distributed_c10d.py", 3100, "collective")
_DOING = {
    Doing.DATA: (Frame(f"{TORCH}/utils/data/dataloader.py", 1400, "_get_data"),),
    Doing.CHECKPOINT: (Frame(f"{TORCH}/serialization.py", 900, "_save"),),
}
_COARSE = {"reduce_scatter_tensor": "all_reduce"}


@dataclass(frozen=True, slots=True)
class Sight:
    """How much can be seen."""

    ring: int = 200
    flight: bool = True
    stacks: bool = True
    sources: bool = True


def snapshot(
    run: Simulation, layout: Layout, source: str, at_s: float, sight: Sight
) -> JobSnapshot:
    """The job as it stands at a moment."""
    ranks = tuple(_Look(rank, layout, at_s, sight).snapshot() for rank in run.ranks)
    ended = run.ended_s <= at_s
    codes = [rank.end.exit_code for rank in run.ranks if rank.end is not None]
    return JobSnapshot(
        world_size=layout.size,
        ranks=ranks,
        ended=ended,
        exit_code=(0 if all(code == 0 for code in codes) else 1) if ended else None,
        sources={SCRIPT: source} if sight.sources else {},
    )


class _Look:
    """One rank at a moment."""

    def __init__(self, rank: Rank, layout: Layout, at_s: float, sight: Sight) -> None:
        end = rank.end
        self.rank = rank
        self.layout = layout
        self.sight = sight
        self.now_s = at_s
        self.raised = end is not None and end.raised_s <= at_s
        self.gone = end is not None and end.gone_s <= at_s
        self.at_s = min(at_s, end.gone_s) if end is not None else at_s
        """The moment at which its memory was as it is now."""
        self.stop_s = next((since for since, until in rank.stops if since <= at_s < until), NEVER)
        at = bisect_right(rank.trace, self.at_s, key=lambda pair: pair[0]) - 1
        self.since_s, self.doing = rank.trace[at] if at >= 0 else (0.0, None)
        self.started = at >= 0
        holds = isinstance(self.doing, Busy) and self.doing.doing is Doing.HOLDS_GIL
        self.beat_s = min(self.at_s, self.stop_s, self.since_s if holds else NEVER)
        """Its sampler has run until then."""
        self.holds_gil = holds
        sampled = self.beat_s - (rank.number * 0.13) % PERIOD_S
        self.sampled_s = max(0.0, sampled // PERIOD_S * PERIOD_S + (rank.number * 0.13) % PERIOD_S)
        orderly = self.raised or (self.gone and end is not None and end.exit_code == 0)
        if orderly:  # the interpreter's end is the last chance to sample
            self.sampled_s = self.beat_s = self.at_s
        # Who raises leaves its recorder behind; who is killed or frozen does not answer.
        answers = self.raised or not self.gone
        self.flight = sight.flight and answers and self.stop_s == NEVER and not holds

    def snapshot(self) -> RankSnapshot:
        rank, end = self.rank, self.rank.end
        setup = self.doing if isinstance(self.doing, SetUp) and not self.gone else None
        pending_s = self._pending_since()
        exception = None
        if self.raised and end is not None:
            exception = ExceptionRecord(end.type, end.message, Site(SCRIPT, end.line, "main"))
        return RankSnapshot(
            rank=rank.number,
            node="n0",
            pid=1000 + rank.number,
            phase=self._phase(),
            process=self._process(),
            phase_age_s=self.now_s - self._phase_since(),
            groups=self._groups(pending=pending_s is not None),
            ops=self._ops(pending=pending_s is not None),
            in_call=setup.call if setup else "",
            in_call_age_s=self.now_s - self.since_s if setup else 0.0,
            in_call_site=Site(SCRIPT, setup.line, "main") if setup else None,
            new_groups=self._new_groups(),
            exception=exception,
            exception_age_s=self.now_s - end.raised_s if exception and end else None,
            gil_age_s=self.now_s - self.sampled_s,
            heartbeat_age_s=self.now_s - min(self.at_s, self.stop_s),
            pending_age_s=self.now_s - pending_s if pending_s is not None else None,
            threads=self._threads(),
            flight=self.flight,
        )

    def _new_groups(self) -> tuple[NewGroup, ...]:
        made = [
            (at_s, step)
            for at_s, step in self.rank.trace
            if isinstance(step, SetUp) and step.call == "new_group" and at_s <= self.at_s
        ]
        return tuple(
            NewGroup(
                index,
                index + 1,
                GroupKey(step.members),
                Site(SCRIPT, step.line, "main"),
                self.now_s - at_s,
            )
            for index, (at_s, step) in enumerate(made)
        )

    def _phase(self) -> Phase:
        end = self.rank.end
        if self.raised:
            return Phase.RAISED
        if self.gone and end is not None and end.exit_code == 0:
            return Phase.EXITED
        if isinstance(self.doing, SetUp) and self.doing.call == "init_process_group":
            return Phase.INIT
        made = any(at_s <= self.at_s for at_s, *_ in self.rank.made)
        return Phase.RUNNING if made else Phase.BORN

    def _phase_since(self) -> float:
        end = self.rank.end
        if self.raised and end is not None:
            return end.raised_s
        if self.gone and end is not None and end.exit_code == 0:
            return end.gone_s
        made = next((at_s for at_s, *_ in self.rank.made if at_s <= self.at_s), 0.0)
        return self.since_s if isinstance(self.doing, SetUp) else made

    def _process(self) -> ProcessState:
        end = self.rank.end
        if self.gone and end is not None:
            return ProcessState(
                alive=False,
                exit_code=end.exit_code,
                signal=end.signal,
                gone_age_s=self.now_s - end.gone_s,
                terminated_by_launcher=end.by_launcher,
            )
        return ProcessState(alive=True, state="T" if self.stop_s < NEVER else "S")

    # --- Counters and calls -------------------------------------------------------

    def _pending_since(self) -> float | None:
        """Since when c10d has the same unfinished work, as the sampler last saw it."""
        open_calls = [
            call.issued_s
            for call in self.rank.calls
            if not call.issue.p2p and call.issued_s <= self.sampled_s < _over_s(call)
        ]
        return max(open_calls) if open_calls else None

    def _groups(self, *, pending: bool) -> tuple[GroupProgress, ...]:
        made = [(name, group) for at_s, name, group in self.rank.made if at_s <= self.at_s]
        if made and self.rank.set_up_at_once:
            made = [(n, n) for n in range(len(self.layout.keys)) if self._member(n)]
        found = []
        for name, group in made:
            entered = p2p = by_python = 0
            for call in self.rank.calls:
                issue = call.issue
                if issue.group != group or call.issued_s > self.at_s:
                    continue
                by_python += issue.mode is not Mode.CPP and not issue.p2p
                if issue.p2p:
                    p2p += 1
                elif issue.mode is not Mode.CPP or call.issued_s <= self.sampled_s:
                    entered = call.seq
            completed = self._completed(group) if pending else self._sampled(group)
            key = self.layout.keys[group]
            found.append(
                GroupProgress(key, str(name), entered, completed, p2p, by_python=by_python)
            )
        return tuple(found)

    def _member(self, group: int) -> bool:
        return self.rank.number in self.layout.members(group)

    def _sampled(self, group: int) -> int:
        return sum(
            call.issue.group == group and not call.issue.p2p and call.issued_s <= self.sampled_s
            for call in self.rank.calls
        )

    def _completed(self, group: int) -> int:
        """What c10d says was completed last: threads note it, and one of them may be late."""
        over = [
            call.seq
            for call in self.rank.calls
            if call.issue.group == group and not call.issue.p2p and _over_s(call) <= self.sampled_s
        ]
        late = self.rank.number % 3 and self.rank.number != min(self.layout.members(group))
        return over[-min(len(over), 4 if late else 1)] if over else -1

    def _ops(self, *, pending: bool) -> tuple[OpRecord, ...]:
        issued = [call for call in self.rank.calls if call.issued_s <= self.at_s]
        page = [call for call in issued if call.issue.mode is not Mode.CPP][-self.sight.ring :]
        in_ring = set(map(id, page))
        found = []
        for call in issued:
            if id(call) in in_ring:
                found.append(self._from_page(call, pending=pending))
            elif self.flight and not call.issue.p2p:
                found.append(self._record(call, self._done(call), source="flight"))
        return tuple(found)

    def _done(self, call: Call) -> OpState:
        """What the recorder says; it takes what has failed for done."""
        return OpState.DONE if _over_s(call) <= self.at_s else OpState.ISSUED

    def _from_page(self, call: Call, *, pending: bool) -> OpRecord:
        state = OpState.ISSUED
        if call.failed_s <= self.at_s and call.blocked_s <= self.at_s and self.raised:
            state = OpState.FAILED
        elif call.returned_s <= self.at_s:
            state = OpState.DONE
        elif call.blocked_s <= self.at_s:
            state = OpState.BLOCKED
        if state in (OpState.ISSUED, OpState.BLOCKED) and not call.issue.p2p:
            known = self.flight or (
                state is OpState.ISSUED and not pending and call.issued_s <= self.sampled_s
            )
            if known and _over_s(call) <= (self.at_s if self.flight else self.sampled_s):
                state = OpState.DONE
        return self._record(call, state, source="page")

    def _record(self, call: Call, state: OpState, source: str) -> OpRecord:
        issue = call.issue
        flight = source == "flight"
        blocked = state is OpState.BLOCKED
        wire = issue.op.removeprefix("i") if issue.p2p else issue.op
        wire = _COARSE.get(wire, wire) if flight else wire
        return OpRecord(
            group=self.layout.keys[issue.group],
            op=wire if flight else issue.op,
            wire=wire,
            seq=call.seq,
            p2p=issue.p2p,
            state=state,
            dtype=issue.dtype,
            shape=(issue.size,) if issue.op != "barrier" else (),
            root=-1 if flight else issue.root,
            peer=issue.peer,
            is_async=issue.mode is not Mode.BLOCK,
            site=None if flight else Site(SCRIPT, issue.inner or issue.line, issue.function),
            issued_age_s=self.now_s - call.issued_s,
            blocked_age_s=self.now_s - call.blocked_s if blocked else None,
            source=source,
            thread=1000 + self.rank.number,
        )

    # --- Stacks -------------------------------------------------------------------

    def _threads(self) -> tuple[ThreadStack, ...] | None:
        if not self.sight.stacks or self.gone or self.raised or not self.started:
            return None
        step = self.doing
        if step is None:
            return None
        frames: tuple[Frame, ...] = (Frame(SCRIPT, step.line, "main"),)
        if isinstance(step, Busy):
            frames = (*_DOING.get(step.doing, ()), *frames)
        elif isinstance(step, Issue):
            if step.inner:
                frames = (Frame(SCRIPT, step.inner, step.function), *frames)
            frames = (_C10D, *frames)
        elif isinstance(step, SetUp):
            frames = (_C10D, *frames)
        elif isinstance(step, Join) and step.by_cpp:
            frames = (*_BACKWARD, *frames)
        tid = 1000 + self.rank.number
        return (
            ThreadStack("MainThread", tid, active=True, owns_gil=self.holds_gil, frames=frames),
        )


def _over_s(call: Call) -> float:
    return min(call.done_s, call.failed_s)
