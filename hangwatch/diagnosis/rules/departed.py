"""Blames a hang on the ranks that left the common sequence of calls, even long before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from hangwatch.diagnosis.facts.alignment import END, Divergence, Made
from hangwatch.diagnosis.facts.channels import senders
from hangwatch.diagnosis.facts.endings import How
from hangwatch.diagnosis.facts.history import (
    PEER,
    Step,
    has_left_out,
    is_usual_wait,
    messages_between,
    other_peers,
    shift,
    step,
)
from hangwatch.diagnosis.facts.job import NEW_GROUP, is_majority
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Slot
from hangwatch.diagnosis.rules.by_source import is_by_rank
from hangwatch.diagnosis.rules.case import DIVERGED, MOST_COMPARED, Case, Finding, collective_of
from hangwatch.diagnosis.text import disagreement
from hangwatch.diagnosis.text.phrases import MAX_SHOWN, Ranks, at_line, group_text, wait_point_text
from hangwatch.diagnosis.text.wording import Scene
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, Phase, Reason, What
from hangwatch.model.snapshot import OpRecord
from hangwatch.text import capital, the_ranks, verb

AGREE_AFTER = 2
"""Calls after a skipped or an extra one that have to agree."""
_OF_TWO = frozenset({Kind.FINISHED_EARLY, Kind.MISSING_PEER, Kind.ORDER_INVERSION})
"""Kinds of which the one side may be at fault as well as the other."""
_OF_THE_PROGRAM = frozenset({Reason.USER_CODE, Reason.EXITED})
"""Reasons for which a rank is elsewhere that is neither busy nor stopped."""


def with_departure(case: Case, finding: Finding) -> Finding:
    """The finding, of the ranks that left the common sequence, if the calls of all show it."""
    culprits = {*finding.culprits}
    if finding.kind is Kind.NEVER_ENTERED:
        elsewhere = _came_from_elsewhere(case, finding) and culprits == case.departures.ranks
        return _since(case, finding) if elsewhere else finding
    if finding.kind not in DIVERGED and not finding.makes_a_group:
        return finding
    left = case.departures.ranks & {*culprits, *finding.victims}
    blamed = left == culprits and not finding.makes_a_group
    divergence = _divergence(case, left) if left and not blamed else None
    if divergence is not None:
        return _of_departed(case, finding, tuple(sorted(left)), divergence)
    if left == culprits:
        since = _since(case, finding)
        return since.likely_at_most() if left & case.departures.by_habit else since
    if finding.makes_a_group:
        return _of_groups(case, finding)
    return _or_another(case, finding) if finding.kind in _OF_TWO else finding


def _of_groups(case: Case, finding: Finding) -> Finding:
    """The finding, where others may have made another group as well as the culprits.

    All ranks have to make all groups: so it stands that the culprits did not, and no more.
    """
    tied = _tied(case, finding)
    divergence = _divergence(case, finding.culprits) if tied else None
    if divergence is None:
        return finding
    culprit = next(rank for rank in divergence.ranks if rank in finding.culprits)
    alike = tied - _makers(case, divergence.seen_by(culprit)[1][0])
    departed = _of_departed(case, finding, tuple(sorted(alike)), divergence)
    return replace(departed, certainty=Certainty.POSSIBLE)


def _makers(case: Case, made: Made) -> set[int]:
    """The ranks that called new_group as one of them did; none for another call."""
    if made.step.wire != NEW_GROUP:
        return set()
    return {
        rank.rank
        for rank in case.job.ranks.values()
        for call in rank.new_groups
        if call.number == made.seq
        and str(case.job.gid(call.group)) == made.step.size
        and call.site is not None
        and (call.site.file, call.site.line) == (made.step.file, made.step.line)
    }


def _or_another(case: Case, finding: Finding) -> Finding:
    """The finding, of all ranks that may be at fault as well as its culprits."""
    culprits, others = {*finding.culprits}, _others(case, finding)
    tied, elsewhere = _tied(case, finding), [_is_elsewhere(case, rank) for rank in culprits]
    if finding.kind is Kind.MISSING_PEER and not any(elsewhere):
        return finding  # they may still make it
    point = finding.wait_point
    if isinstance(point, Channel) and _is_awaited_elsewhere(case, point):
        either = finding.of_any(culprits | {point.waiter})
        return replace(either, what=What.DIFFERENT_ARGUMENT, differs=PEER)
    # Otherwise the culprits are fewer, or busy.
    even = finding.reason in _OF_THE_PROGRAM and len(culprits) >= len(others) and all(elsewhere)
    if not tied and not even:
        return finding
    if is_by_rank(case, finding) or (not tied and _did_as_never_before(case, culprits, others)):
        return finding.likely_at_most()
    if isinstance(point, Channel) and culprits == {point.peer} and has_left_out(case.job, point):
        return finding.likely_at_most()
    return finding.of_any(tied or culprits | others)


def _is_awaited_elsewhere(case: Case, point: Channel) -> bool:
    """Return True if a third rank waits for the other half of a message, as never before.

    Then that one and the peer agree that there is a change, which the waiter may have missed. Or
    as it has from the beginning, and the peer has had all messages of the waiter until now.
    """
    taken = messages_between(case.job, point.peer, point.waiter)
    return any(
        isinstance(one, Channel)
        and (one.gid, one.peer, one.sends) == (point.gid, point.waiter, not point.sends)
        and one.waiter != point.peer
        and (
            any(w.record is not None and other_peers(case.job, w.rank, w.record) for w in waits)
            or (taken > 1 and messages_between(case.job, one.waiter, point.waiter) == 1)
        )
        for one, waits in case.graph.at.items()
    )


def _came_from_elsewhere(case: Case, finding: Finding) -> bool:
    """Return True if a culprit made a different call in the group of the waiting ranks."""
    slot = finding.wait_point
    if not isinstance(slot, Slot) or not finding.waits or not finding.culprits:
        return False
    culprit, other = finding.culprits[0], finding.waits[0].rank
    return any(
        step(records[culprit]) != step(records[other])
        for records in case.job.slots(slot.gid).values()
        if culprit in records and other in records
    )


def _tied(case: Case, finding: Finding) -> set[int]:
    """The ranks that may have left the program as well as the culprits."""
    culprits, victims = {*finding.culprits}, {*finding.victims}
    tied = case.departures.tied
    # In a tie, a rank that neither waits nor is awaited explains nothing.
    if tied & culprits and (tied <= culprits or tied & victims):
        return culprits | (tied & victims)
    return set()


def _others(case: Case, finding: Finding) -> set[int]:
    """The ranks on the other side of a finding than its culprits."""
    culprits, slot, before = {*finding.culprits}, finding.wait_point, case.graph.before()
    others = {wait.rank for wait in finding.waits}
    if finding.kind is Kind.ORDER_INVERSION:
        return others - culprits
    if finding.reason is Reason.EXITED:
        for node in chain.from_iterable(before.get(rank, ()) for rank in culprits):
            others.update(case.direct(node) if not isinstance(node, int) else ())
    if isinstance(slot, Channel):
        others.update(senders(case.job, slot) if slot.peer == ANYONE else (slot.peer,))
        others.update(*(_in_messages(case, rank) for rank in culprits))
    elif isinstance(slot, Slot):
        others.update(case.job.members(slot.gid))
    return others - culprits


def _in_messages(case: Case, rank: int) -> set[int]:
    """The members of the collective that a rank is in that are in messages, if these are most."""
    by_rank = case.graph.by_rank
    points = (wait.wait_point for wait in by_rank.get(rank, ()))
    slot = next((point for point in points if isinstance(point, Slot)), None)
    if slot is None:
        return set()
    members = case.job.members(slot.gid)
    found = {
        member
        for member in members
        if not case.job.arrived(member, slot)
        and any(isinstance(other.wait_point, Channel) for other in by_rank.get(member, ()))
    }
    return found if is_majority(found, members) else set()


def _is_elsewhere(case: Case, rank: int) -> bool:
    """Return True if a rank has ended, or waits: otherwise it may still make the call."""
    end = case.ended.get(rank)
    if end is not None:
        return end.how is How.CLEAN
    snapshot = case.job.ranks.get(rank)
    finalizing = snapshot is not None and snapshot.phase is Phase.FINALIZING
    return finalizing or bool(case.graph.by_rank.get(rank))


def _did_as_never_before(case: Case, ranks: set[int], others: set[int]) -> bool:
    """Return True if ranks wait in calls that are new there, and the others in their usual ones."""

    def usual(rank: int) -> set[bool | None]:
        waits = case.graph.by_rank.get(rank, ())
        return {is_usual_wait(case.job, wait) for wait in waits if wait.record is not None}

    as_ever = (usual(rank) <= {True} for rank in others)
    return bool(others) and all(False in usual(rank) for rank in ranks) and all(as_ever)


def _since(case: Case, finding: Finding) -> Finding:
    """The finding, from an earlier call on that its culprits skipped, or made in excess."""
    slot = finding.wait_point

    def is_before(mine: Sequence[Made], theirs: Sequence[Made]) -> bool:
        moved = _moved_by(mine, theirs)
        if moved is None or not isinstance(slot, Slot):
            return False
        about = theirs[0] if moved > 0 else mine[0]
        # The slot where they got stuck is in the finding as it is.
        return (about.gid, about.p2p) == (slot.gid, False) and about.seq < slot.seq

    divergence = _divergence(case, finding.culprits, is_before)
    return (
        finding if divergence is None else _of_departed(case, finding, finding.culprits, divergence)
    )


def _divergence(
    case: Case,
    culprits: Iterable[int],
    fits: Callable[[Sequence[Made], Sequence[Made]], bool] = lambda _mine, _theirs: True,
) -> Divergence | None:
    """The divergence of most culprits from ranks that did not leave the common sequence."""
    alike: dict[tuple[Step, Step], list[Divergence]] = defaultdict(list)
    for divergence in case.departures.divergences:
        guilty = {*divergence.ranks} & {*culprits}
        if len(guilty) == 1:
            mine, theirs = divergence.seen_by(guilty.pop())
            if fits(mine, theirs):
                alike[mine[0].step, theirs[0].step].append(divergence)
    if not alike:
        return None
    most = max(alike, key=lambda steps: (sum(one.pairs for one in alike[steps]), steps))
    return alike[most][0]


def _of_departed(case: Case, finding: Finding, culprits: Ranks, divergence: Divergence) -> Finding:
    """The finding, of these culprits and from the call at which they left the common sequence."""
    victims = tuple(sorted({*finding.culprits, *finding.victims} - {*culprits}))
    culprit, other = sorted(divergence.ranks, key=lambda rank: rank not in culprits)
    mine, theirs = divergence.seen_by(culprit)
    moved = _moved_by(mine, theirs)
    is_theirs = mine[0].step == END or (moved is not None and moved > 0)
    call, caller = (theirs[0], other) if is_theirs else (mine[0], culprit)
    where = wait_point_text(case.job, Slot(call.gid, call.seq), call.step.wire)
    if call.p2p:
        where = f"{call.step.wire} in {group_text(case.job, call.gid)}"
    scene = Scene(
        culprits,
        victims,
        where,
        _site(case, culprit, mine[0]),
        _site(case, other, theirs[0]),
        {
            rank: with_source(record.site, case.texts) or record.site
            for ranks, made in ((culprits, mine[0]), (victims, theirs[0]))
            for rank in ranks[:MOST_COMPARED]
            if (record := _record(case, rank, made)) is not None and record.site is not None
        },
    )
    kind, what, shows = Kind.OP_MISMATCH, None, _shows(case, finding)
    if END in (mine[0].step, theirs[0].step):
        kind = Kind.FINISHED_EARLY
        text = disagreement.ended_before(scene, shows, outlasts=theirs[0].step == END)
    elif NEW_GROUP in (mine[0].step.wire, theirs[0].step.wire):
        kind = Kind.INIT_INCOMPLETE
        alike = mine[0].step[:3] == theirs[0].step[:3]
        what = What.GROUP_CREATION if alike else None
        calls = _setup_text(case, mine[0]), _setup_text(case, theirs[0])
        others = tuple(sorted(_makers(case, theirs[0]) & {*victims})) or victims
        text = disagreement.other_groups(replace(scene, others=others), calls, shows)
    elif moved is not None:
        text = disagreement.out_of_step(scene, moved, shows)
    else:
        text = disagreement.other_way(scene, (mine[0].step.wire, theirs[0].step.wire), shows)
    record = _record(case, caller, call)
    return replace(
        finding,
        kind=kind,
        reason=Reason.USER_CODE,
        certainty=finding.certainty if culprits == finding.culprits else Certainty.LIKELY,
        hang=finding.hang or finding.certainty,
        culprits=culprits,
        victims=victims,
        text=text,
        collective=collective_of(record) if record is not None else None,
        site=scene.site,
        victim_site=scene.other_site,
        ended=tuple(rank for rank in culprits if rank in case.ended),
        what=what,
    )


def _setup_text(case: Case, made: Made) -> str:
    """``new_group for ranks 0 and 1``, or another call."""
    members = case.job.keys[int(made.step.size)].ranks if made.step.wire == NEW_GROUP else ()
    return f"{made.step.wire} for {the_ranks(members)}" if members else made.step.wire


def _shows(case: Case, finding: Finding) -> str:
    """``Ranks 0 and 1 wait in all_reduce #3 at train.py:41.``, of the ranks that are stuck now."""
    at = {wait.wait_point: wait for wait in finding.waits}
    waiting = [
        f"{the_ranks(ranks)} {verb(ranks, 'waits', 'wait')} in {case.where(point)}"
        f"{at_line(case.wait_site(wait))}"
        for point, wait in list(at.items())[:MAX_SHOWN]
        if (ranks := case.direct(point))
    ]
    return f"{capital(', '.join(waiting))}." if waiting else ""


def _record(case: Case, rank: int, made: Made) -> OpRecord | None:
    return next(
        (
            record
            for gid, record in case.job.ops.get(rank, ())
            if (gid, record.seq, record.p2p) == (made.gid, made.seq, made.p2p)
        ),
        None,
    )


def _site(case: Case, rank: int, made: Made) -> Site | None:
    record = _record(case, rank, made)
    if record is not None and record.site is not None:
        return with_source(record.site, case.texts)
    if made.step == END or made.p2p:
        return None
    return case.site_at(rank, Slot(made.gid, made.seq))


def _moved_by(mine: Sequence[Made], theirs: Sequence[Made]) -> int | None:
    """The number of calls that the first skipped, or made in excess (negative), or None."""
    one, other = (dict(enumerate(made.step for made in way)) for way in (mine, theirs))
    return shift(one, other, AGREE_AFTER)
