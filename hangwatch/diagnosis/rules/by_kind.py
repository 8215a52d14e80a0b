"""Why it came to a finding, where no way through the source tells it: by what kind it is of."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace

from hangwatch.diagnosis.facts.history import PEER, other_peers
from hangwatch.diagnosis.facts.signatures import Differs
from hangwatch.diagnosis.facts.stores import KEY, setter
from hangwatch.diagnosis.facts.wait_points import Channel, Place, Setup
from hangwatch.diagnosis.rules.case import MOST_COMPARED, Case, Finding
from hangwatch.diagnosis.rules.splits import position
from hangwatch.diagnosis.source.origins import root_of_rank, size_of_data
from hangwatch.diagnosis.source.program import Line, Position, Program
from hangwatch.diagnosis.source.syntax import Loop, called, in_body, other_branch, own, spans
from hangwatch.diagnosis.text import reasons
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, Reason, What
from hangwatch.model.snapshot import OpRecord
from hangwatch.model.verdict import RootCause

OF_THE_PROGRAM = frozenset({Reason.USER_CODE, Reason.EXITED, Reason.EXCEPTION_HANDLING})
"""Why a rank is elsewhere that is neither busy nor stopped."""
_BY_KIND = {
    Kind.NEVER_ENTERED: What.STUCK_LINE,
    Kind.DIED: What.PROCESS_GONE,
    Kind.SIGNATURE_MISMATCH: What.DIFFERENT_ARGUMENT,
    Kind.ORDER_INVERSION: What.DIFFERENT_ORDER,
    Kind.MISSING_PEER: What.UNMATCHED_P2P,
    Kind.INIT_INCOMPLETE: What.SETUP,
    Kind.COLLECTIVE_STUCK: What.NETWORK,
}
_BY_REASON = {
    Reason.GPU_KERNEL: What.DEVICE,
    Reason.GPU_FAULT: What.DEVICE,
    Reason.NETWORK: What.NETWORK,
    Reason.NODE_LOST: What.PROCESS_GONE,
    Reason.STOPPED: What.STUCK_LINE,
    Reason.DEBUGGER: What.STUCK_LINE,
}


_BACK_TO: Mapping[str, Callable[..., Line | None]] = {
    Differs.SHAPE: size_of_data,
    Differs.ROOT: root_of_rank,
}
"""What finds the line that makes an argument differ, by the respect in which it does."""
_SENDING, _RECEIVING = {"send", "isend"}, {"recv", "irecv"}
_SYMPTOMS = (What.DIFFERENT_ORDER, What.UNMATCHED_P2P, What.NETWORK)
"""How it shows, and not why: all came, and no data."""


def are_busy(case: Case, finding: Finding) -> bool:
    """Whether no culprit waits, nor has come to its end."""
    return not any(rank in case.ended or case.graph.by_rank.get(rank) for rank in finding.culprits)


def is_about_groups(finding: Finding) -> bool:
    """Whether ranks that are neither busy nor stopped did not make a group alike."""
    return finding.makes_a_group and finding.reason in OF_THE_PROGRAM


def without_choice(case: Case, finding: Finding) -> RootCause:
    """What is known of the reason by the kind of the finding, and by what the culprits do."""
    what = _named(case, finding)
    if what is What.UNKNOWN:
        return RootCause(what, Certainty.POSSIBLE)
    if what is What.STUCK_LINE:
        return _stuck(case, finding)
    point = finding.wait_point
    known = setter(case.job.ranks, point.keys) if isinstance(point, Setup) else None
    if known is not None and finding.differs != KEY:
        site = with_source(known.site, case.texts)
        return RootCause(what, finding.certainty, site, reasons.of_kind(what))
    if what is What.UNMATCHED_P2P:
        other = (
            _to_another(case, finding)
            or _all_one_way(case, finding)
            or _in_other_loops(case, finding)
        )
        if other is not None:
            return other
    if what is What.DIFFERENT_ARGUMENT:
        made = _of_messages(finding) or _sized(case, finding)
        if made is not None:
            return made
    site = finding.site
    if what is What.PROCESS_GONE and not any(
        end.exception is not None for rank, end in case.ended.items() if rank in finding.culprits
    ):
        site = None  # its last call, which is not why it ended
    lines = {(at.file, at.line) for at in (site, finding.victim_site) if at is not None}
    two = what is What.DIFFERENT_ARGUMENT and len(lines) > 1
    why = reasons.AT_TWO_LINES if two else reasons.of_kind(what)
    return RootCause(what, _certainty(case, finding, what), site, why)


def _of_messages(finding: Finding) -> RootCause | None:
    """The tag or the group that the two sides of a message do not name alike."""
    why = reasons.OF_MESSAGES.get(finding.differs)
    if why is None:
        return None
    site = finding.victim_site if finding.differs == PEER else finding.site
    return RootCause(What.DIFFERENT_ARGUMENT, finding.certainty, site, why, (why,))


def _sized(case: Case, finding: Finding) -> RootCause | None:
    """What makes a size depend on the data of the rank, or a root on what it has of its own."""
    at, known = position(case, finding.culprits[0]) if finding.culprits else None, finding.site
    search = _BACK_TO.get(finding.differs)
    if search is None or finding.apart or known is None:
        return None
    line = Line(known.file, known.line)
    above = at.frames[:-1] if at is not None and at.line == line else ()
    found = search(case.source.program, line, above)
    if found is None:
        return None
    site = case.site_of_line(*found)
    sized = finding.differs == Differs.SHAPE
    why = reasons.sized_by_data(site) if sized else reasons.put_by_rank(site)
    return RootCause(What.DIFFERENT_ARGUMENT, Certainty.POSSIBLE, site, why, (why,))


def _certainty(case: Case, finding: Finding, what: What) -> Certainty:
    shown = what is What.NETWORK and finding.reason is Reason.NETWORK
    if what in _SYMPTOMS and not shown:
        return Certainty.POSSIBLE
    if what is What.DIFFERENT_ARGUMENT:
        sure = Certainty.LIKELY if _is_one_call(case, finding) else Certainty.POSSIBLE
        return finding.certainty.at_most(sure)
    return finding.certainty


def _stuck(case: Case, finding: Finding) -> RootCause:
    """A line that does not come to its end, and what it waits for."""
    why, site, seen = reasons.of_kind(What.STUCK_LINE), finding.site, ""
    culprit = next(iter(finding.undecided or finding.culprits), -1)
    alive = culprit in case.job.ranks and culprit not in case.ended
    blocked = case.doing(culprit).blocked if alive else None
    if blocked is not None:
        seen = reasons.of_wait((culprit,), blocked)
        why = seen or why
        link = blocked.link.site if blocked.link is not None else None
        if link is not None and case.source.tree(link.file) is None:
            link = None  # of another program
        own = blocked.link.crossed if blocked.link and blocked.link.holds is None else None
        site = blocked.until or own or link or site
    return RootCause(What.STUCK_LINE, finding.certainty, site, why, (seen,) if seen else ())


def _to_another(case: Case, finding: Finding) -> RootCause | None:
    """A message of the culprit's that goes to another rank than all that it sent there before."""
    for wait in (w for rank in finding.culprits for w in case.graph.by_rank.get(rank, ())):
        peers = other_peers(case.job, wait.rank, wait.record) if wait.record is not None else ()
        if wait.record is not None and peers:
            why = reasons.to_another((wait.rank,), wait.record.peer, peers)
            certainty = finding.certainty.at_most(Certainty.LIKELY)
            site = case.wait_site(wait)
            return RootCause(What.DIFFERENT_ARGUMENT, certainty, site, why, (why,))
    return None


def _all_one_way(case: Case, finding: Finding) -> RootCause | None:
    """The condition that led all culprits to one call, whose other way makes the counterpart."""
    site = finding.site
    sides = {
        wait.wait_point.sends for wait in finding.waits if isinstance(wait.wait_point, Channel)
    }
    if site is None or site != finding.victim_site or len(sides) != 1:
        return None
    missing = _RECEIVING if sides.pop() else _SENDING
    at = position(case, finding.culprits[0]) or Position((Line(site.file, site.line),))
    for line in at.frames[::-1]:
        node = _turning_from(case.source.program, line, missing)
        if node is not None:
            of_rank = case.source.asks_for_rank(line.file, node.test, strictly=True)
            what = What.RANK_CONDITION if of_rank else What.DATA_CONDITION
            where = case.site_of_line(line.file, node.lineno)
            why = reasons.all_one_way(finding.culprits, where)
            return RootCause(what, finding.certainty, where, why, (why,))
    return None


def _in_other_loops(case: Case, finding: Finding) -> RootCause | None:
    """The loops that two ranks send in, or receive in, of which each is in one of its own."""
    sides = {w.wait_point.sends for w in finding.waits if isinstance(w.wait_point, Channel)}
    ranks = finding.culprits[:2]
    places = [at for rank in ranks if (at := position(case, rank)) is not None]
    if len(sides) != 1 or len(places) < 2 or len(finding.culprits) < 2:  # noqa: PLR2004 (a pair)
        return None
    found = []
    for (mine, theirs), rank in zip((places, places[::-1]), ranks, strict=True):
        loop = _own_loop(case.source.program, mine, theirs)
        if loop is not None:
            site = case.site_of_line(*loop)
            other = ranks[1] if rank == ranks[0] else ranks[0]
            why = reasons.in_loop_alone(rank, other, site)
            found.append(RootCause(What.UNMATCHED_P2P, Certainty.POSSIBLE, site, why, (why,)))
    return replace(found[0], others=tuple(found[1:])) if found else None


def _own_loop(program: Program, mine: Position, theirs: Position) -> Line | None:
    """The innermost loop that one place is in, and another is not."""
    for line in mine.frames[::-1]:
        scope = program.scope_at(line)
        loops = [node for node in own(scope) if isinstance(node, Loop)] if scope is not None else []
        for loop in sorted(loops, key=lambda node: -node.lineno):
            inside = [one for one in theirs.frames if one.file == line.file]
            if in_body(loop, line.number):
                shared = any(in_body(loop, one.number) for one in inside)
                return None if shared else Line(line.file, loop.lineno)
    return None


def _turning_from(program: Program, line: Line, missing: set[str]) -> ast.If | None:
    """The condition around a line whose other way makes one of some calls, or has a helper do."""
    scope = program.scope_at(line)
    if scope is None:
        return None
    for node in [node for node in own(scope) if isinstance(node, ast.If)]:
        ways = (node.body, other_branch(scope, node))
        mine = [way for way in ways if spans(way, line.number)]
        calls = [call for way in ways for call in program.communicating(way)]
        other = {called(call) for call in calls if not (mine and spans(mine[0], call.lineno))}
        helpers = [one for name in other for one in program.named.get(name, ())]
        inside = [node for one in helpers for node in own(one) if isinstance(node, ast.Call)]
        if mine and (other | {*map(called, inside)}) & missing:
            return node
    return None


def _named(case: Case, finding: Finding) -> What:
    if finding.what is not None:
        return finding.what
    if is_about_groups(finding):
        return What.STUCK_LINE if are_busy(case, finding) else What.GROUP_CREATION
    if finding.apart:
        return What.UNKNOWN  # calls of one operation, and not one call
    busy = finding.reason not in OF_THE_PROGRAM or are_busy(case, finding)
    if finding.kind is Kind.MISSING_PEER and busy:
        return What.STUCK_LINE
    if finding.kind is Kind.FINISHED_EARLY and isinstance(finding.wait_point, Channel):
        return What.UNMATCHED_P2P
    return _BY_REASON.get(finding.reason) or _BY_KIND.get(finding.kind) or What.UNKNOWN


def _is_one_call(case: Case, finding: Finding) -> bool:
    """Whether all members of a place are in one call, by all that is known.

    C++ issues buckets that may be left out. And where a line comes with one size after the other,
    a rank that left a call out is at the next one.
    """
    records = records_of(case, finding)
    sites = {record.site for record in records.values()}
    if len(sites) != 1 or None in sites:
        return False
    sizes = {
        made.shape
        for rank, record in [*records.items()][:MOST_COMPARED]
        for _, made in case.job.ops.get(rank, ())
        if made.site in sites and made is not record
    }
    return len(sizes) <= 1


def records_of(case: Case, finding: Finding) -> Mapping[int, OpRecord]:
    """The calls of a finding's place, by rank."""
    place = finding.wait_point
    return case.job.places(place.gid).get(place.seq, {}) if isinstance(place, Place) else {}
