"""What is true of a simulated job, and what is wrong with a verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planting import generate
from simulator import NEVER, Busy, Simulation
from training import RECOVERS_S, Fault
from views import Sight, snapshot

from hangwatch.model.kinds import Certainty, Kind, State

if TYPE_CHECKING:
    from random import Random

    from simulator import Call
    from training import Job

    from hangwatch.model.snapshot import JobSnapshot
    from hangwatch.model.verdict import Verdict, Wait

LASTING_S = RECOVERS_S / 2
"""What has not happened by then happens only because the fault goes away again."""
SLOW_S = 4.0
"""What takes longer than this is slow."""
_OF_TWO = {Kind.MISSING_PEER, Kind.FINISHED_EARLY}
_KINDS: dict[Fault, set[Kind]] = {
    Fault.KILLED: {Kind.DIED},
    Fault.RAISED: {Kind.DIED},
    Fault.NO_INIT: {Kind.INIT_INCOMPLETE},
    Fault.NO_NEW_GROUP: {Kind.INIT_INCOMPLETE},
    Fault.STUCK: {Kind.COLLECTIVE_STUCK},
    Fault.EARLY: {
        Kind.FINISHED_EARLY,
        Kind.MISSING_PEER,
        Kind.OP_MISMATCH,
        Kind.ORDER_INVERSION,
    },
}


@dataclass(slots=True)
class Simulated:
    """A job that has been run to its end."""

    job: Job
    run: Simulation
    quiet_s: float
    """From then on nothing happens, but for a fault that goes away much later."""

    @property
    def faults(self) -> set[Fault]:
        return {plan.fault for plan in self.job.plans}

    @property
    def planted(self) -> set[int]:
        """The ranks at fault; nobody is where the network is."""
        return {plan.rank for plan in self.job.plans if plan.fault is not Fault.STUCK}

    @property
    def is_well(self) -> bool:
        """Whether the job comes to its end, however long that takes."""
        return self.faults <= {Fault.SLOW}

    def slow_parts(self) -> list[tuple[float, float]]:
        """When a slow rank begins what keeps it, and for how many seconds."""
        return [
            (at_s, step.seconds)
            for rank in self.run.ranks
            for at_s, step in rank.trace
            if isinstance(step, Busy) and SLOW_S < step.seconds < LASTING_S
        ]

    def seen(self, at_s: float, sight: Sight) -> JobSnapshot:
        return snapshot(self.run, self.job.layout, self.job.source, at_s, sight)

    def stuck(self) -> set[int]:
        """The ranks that wait for ever, or until the fault goes away."""
        found = set()
        for rank in self.run.ranks:
            ends_s = rank.end.gone_s if rank.end else NEVER
            step = next((s for at_s, s in reversed(rank.trace) if at_s < LASTING_S), None)
            if ends_s > LASTING_S and not isinstance(step, Busy):
                found.add(rank.number)
        return found

    def failed(self) -> bool:
        """Whether a rank did not come to the end of its program."""
        ends = (rank.end for rank in self.run.ranks)
        return any(end is not None and end.exit_code != 0 for end in ends)

    def goes_on(self, wait: Wait) -> bool:
        """Whether what a rank was said to wait for comes after all."""
        for call in self.run.ranks[wait.rank].calls:
            if self._is(call, wait):
                return call.done_s < NEVER
        return wait.group is None and self.run.ranks[wait.rank].end is not None

    def _is(self, call: Call, wait: Wait) -> bool:
        group = self.job.layout.keys[call.issue.group]
        return (
            group == wait.group
            and call.seq == wait.seq
            and call.issue.p2p == (wait.op in ("send", "recv", "isend", "irecv"))
        )


def simulate(rng: Random) -> Simulated:
    """Generate a job and run it."""
    job = generate(rng)
    run = Simulation(job.programs, [key.ranks for key in job.layout.keys], job.rules, rng)
    run.run()
    times = [at_s for rank in run.ranks for at_s, _ in rank.trace]
    times += [since_s for rank in run.ranks for since_s, _ in rank.stops]
    times += [rank.end.gone_s for rank in run.ranks if rank.end]
    return Simulated(job, run, max(at_s for at_s in times if at_s < LASTING_S))


def names_wrongly(of: Simulated, verdict: Verdict) -> str:
    """What is wrong with whom a verdict names, empty if nothing is.

    A verdict of two sides (who finished early, who did not post) may name the other one:
    that they differ is in the counters, not which of them has miscounted.
    """
    named = set(verdict.culprits)
    if verdict.kind in _OF_TWO and not named & of.planted:
        # Said of two sides: which of them miscounted is not in the counters.
        named |= {wait.rank for wait in verdict.waits if named & set(wait.waits_for)}
        if verdict.group is not None and len(verdict.group.ranks) == 2:
            named |= set(verdict.group.ranks)
        named |= {wait.rank for wait in verdict.waits if _is_about(verdict, wait)}
        return "" if named & of.planted else "neither side is at fault"
    if verdict.kind is Kind.ORDER_INVERSION and len(named) > 1:
        return "" if named & of.planted else "none of the cycle is at fault"
    if verdict.certainty is Certainty.POSSIBLE:
        if of.planted and named and not named & of.planted:
            return "the culprit is not among the candidates"
        return ""
    if not named <= of.planted:
        return "somebody else is named"
    return ""


def _is_about(verdict: Verdict, wait: Wait) -> bool:
    place = verdict.collective
    return place is not None and (wait.group, wait.seq) == (verdict.group, place.seq)


def wrong_in_the_end(of: Simulated, verdicts: tuple[Verdict, ...]) -> str:
    """What is wrong with the verdicts once nothing moves, with all evidence."""
    found = [verdict for verdict in verdicts if verdict.kind is not None]
    waits = of.stuck()
    if of.is_well:
        return "a healthy job is accused" if found else ""
    if not found:
        return "the fault is missed" if waits or of.failed() else ""
    for verdict in found:
        problem = names_wrongly(of, verdict)
        if problem:
            return problem
    if of.planted and not any(v.culprits for v in found):
        return "nobody is named"
    for fault, kinds in _KINDS.items():
        if of.faults == {fault} and found[0].kind not in kinds:
            return "another kind"
    return ""


def proved_wrongly(of: Simulated, verdict: Verdict) -> bool:
    """Whether a job goes on that was said never to."""
    if verdict.certainty is not Certainty.PROVED or verdict.kind is None:
        return False
    if verdict.state is State.FAILED:
        return False
    return bool(verdict.waits) and all(map(of.goes_on, verdict.waits))
