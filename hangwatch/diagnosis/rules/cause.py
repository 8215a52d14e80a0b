"""Finds the cause of a finding: the line at which its culprits diverged from the others.

By the choices that the source shows, and by other evidence: exceptions, threads that ended,
gradients that were kept local, the iterable of a loop. Otherwise by the kind of the finding.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hangwatch.diagnosis import timing
from hangwatch.diagnosis.facts.history import PEER, other_peers
from hangwatch.diagnosis.facts.signatures import Differs
from hangwatch.diagnosis.facts.stores import KEY, setter
from hangwatch.diagnosis.facts.wait_points import Channel, Setup
from hangwatch.diagnosis.rules.case import MOST_COMPARED, Case, Finding
from hangwatch.diagnosis.rules.choices import (
    OF_THE_PROGRAM,
    Read,
    are_busy,
    has_diverged,
    is_about_groups,
    nodes_around,
    ways_at,
)
from hangwatch.diagnosis.rules.gradients import kept_local, left_without
from hangwatch.diagnosis.rules.order import without_order
from hangwatch.diagnosis.rules.splits import line_at, position
from hangwatch.diagnosis.source.flow import Branch, Choice
from hangwatch.diagnosis.source.origins import (
    conditions_in_callbacks,
    root_of_rank,
    set_for_few,
    size_of_data,
)
from hangwatch.diagnosis.source.program import Line, Position, Program
from hangwatch.diagnosis.source.syntax import called, in_body, own, retried_by, spans
from hangwatch.diagnosis.source.values import early_ends, taken_before
from hangwatch.diagnosis.text import reasons
from hangwatch.diagnosis.text.reasons import TwoPaths
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, Reason, What
from hangwatch.model.verdict import RootCause

MOST_OTHERS = 3
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
"""The search for the line that makes an argument differ, by the respect in which it differs."""
_SENDING, _RECEIVING = {"send", "isend"}, {"recv", "irecv"}
_SYMPTOMS = (What.DIFFERENT_ORDER, What.UNMATCHED_P2P, What.NETWORK)
"""Symptoms, and not causes: all came, and no data."""


def cause_of(case: Case, finding: Finding, found: Sequence[Read]) -> RootCause:
    """The cause of a finding, unknown where nothing shows it.

    found: the choices that the source shows (choices_of).
    """
    seen = kept_local(case, finding) or without_order(case, finding)
    if seen is not None:
        return seen
    unwinding = _of_exception(case, finding, found)
    if not found:
        return (
            left_without(case, finding)
            or unwinding
            or _by_retry(case, finding)
            or without_order(case, finding, in_one_call=True)
            or _by_callback(case, finding)
            or _by_kind(case, finding)
        )
    alone = len(found) == 1 and not found[0].around
    sure = Certainty.LIKELY if alone else Certainty.POSSIBLE
    causes = [_of_choice(case, finding, read, sure) for read in found]
    handled = case.exception_of(finding.culprits)
    if handled is not None and causes[0].what is What.SWALLOWED_EXCEPTION:
        evidence = (*causes[0].evidence, reasons.handling(finding.culprits, handled))
        causes[0] = replace(causes[0], evidence=evidence)
    before = (
        unwinding,
        _of_thread(case, finding, found[0]),
        *_early_ends(case, finding, found[0]),
        _set_for_few(case, finding, found[0]),
    )
    first, *others = [*filter(None, before), *causes]
    return replace(first, others=tuple(others[:MOST_OTHERS]))


def _of_exception(case: Case, finding: Finding, found: Sequence[Read]) -> RootCause | None:
    """An exception that culprits are handling, where they are in another call than the others.

    None where the source shows the handler.
    """
    handled = case.exception_of(finding.culprits) if has_diverged(case, finding) else None
    if handled is None or any(read.choice.kind is Branch.EXCEPTION for read in found):
        return None
    why = reasons.handling(finding.culprits, handled)
    site = with_source(handled.site, case.texts)
    return finding.cause(What.SWALLOWED_EXCEPTION, Certainty.LIKELY, site, why)


def _of_thread(case: Case, finding: Finding, read: Read) -> RootCause | None:
    """The end of a thread, where a loop that it should feed ended earlier on its rank."""
    died = case.thread_that_died(finding.culprits)
    if died is None or read.choice.kind is not Branch.LOOP or read.choice.taken:
        return None
    why = reasons.ended_thread(finding.culprits, died)
    waited_s = max((wait.age_s for wait in finding.waits), default=0.0)
    sure = Certainty.LIKELY if died.age_s - waited_s < timing.MISSED_S else Certainty.POSSIBLE
    return finding.cause(What.SWALLOWED_EXCEPTION, sure, with_source(died.site, case.texts), why)


def _early_ends(case: Case, finding: Finding, read: Read) -> list[RootCause]:
    """The lines that take from the iterator of a loop, or that may end its generator early."""
    if (
        not isinstance(read.node, ast.For)
        or read.choice.kind is not Branch.LOOP
        or read.choice.taken
    ):
        return []
    file, program = read.choice.file, case.source.program
    taken = taken_before(program, file, read.node)
    if taken is not None:
        site = case.site_of_line(*taken)
        why = reasons.taken_before(read.site, site)
        return [finding.cause(What.UNEVEN_LOOP, Certainty.POSSIBLE, site, why)]
    sites = [case.site_of_line(*line) for line in early_ends(program, file, read.node)]
    return [
        finding.cause(What.EARLY_EXIT, Certainty.POSSIBLE, site, why)
        for site in sites
        if (why := reasons.ended_generator(read.site, site, finding.culprits))
    ]


def _set_for_few(case: Case, finding: Finding, read: Read) -> RootCause | None:
    """The condition on the rank below which a value is set that a choice depends on."""
    test, file = read.choice.test, read.choice.file
    if read.what is What.RANK_CONDITION or test is None or read.choice.kind is Branch.EXCEPTION:
        return None

    def asks(choice: Choice) -> bool:
        return choice.test is not None and case.source.asks_for_rank(
            choice.file, choice.test, strictly=True
        )

    line = set_for_few(case.source.program, Line(file, test.lineno), test, asks)
    if line is None:
        return None
    site = case.site_of_line(*line)
    why = reasons.set_for_few(site, read.site)
    return finding.cause(What.RANK_CONDITION, Certainty.POSSIBLE, site, why)


def _by_retry(case: Case, finding: Finding) -> RootCause | None:
    """The handler that repeats a call that raised, where culprits are within that call."""
    at = position(case, finding.culprits[0]) if has_diverged(case, finding) else None
    for line in at.frames[::-1] if at is not None else ():
        handler = retried_by(case.source.program.scope_at(line), line.number)
        if handler is not None:
            site = case.site_of_line(line.file, handler.lineno)
            why = reasons.repeated(site, finding.culprits)
            return finding.cause(What.SWALLOWED_EXCEPTION, Certainty.POSSIBLE, site, why)
    return None


def _by_callback(case: Case, finding: Finding) -> RootCause | None:
    """The condition by which a callback may steer a library on one rank, with all in one call.

    The only condition in it that depends on the rank, or else the only one at all.
    """
    sites = (finding.site, finding.victim_site)
    lines = {(one.file, one.line) if one and one.call else None for one in sites}
    if not has_diverged(case, finding) or len(lines) > 1 or None in lines:
        return None
    source = case.source
    found = [
        (line, test)
        for line, test in conditions_in_callbacks(source.program)
        if not source.is_alike(line.file, test)
    ]
    by_rank = [line for line, test in found if source.asks_for_rank(line.file, test, strictly=True)]
    conditions = by_rank or [line for line, _ in found]
    if len(conditions) != 1:
        return None
    site = case.site_of_line(*conditions[0])
    what = What.RANK_CONDITION if by_rank else What.DATA_CONDITION
    return finding.cause(what, Certainty.POSSIBLE, site, reasons.in_callback(site))


def _of_choice(case: Case, finding: Finding, read: Read, sure: Certainty) -> RootCause:
    split = read.split
    lines = (split.start, split.mine.line, split.theirs.line)
    places = (line and case.site_of_line(*line) for line in lines)
    paths = TwoPaths(read.culprits, split.other, *places)
    why = reasons.of_choice(read.what, read.site, read.choice, paths)
    cause = finding.cause(read.what, sure, read.site, why)
    return replace(cause, evidence=reasons.evidence(paths))


# --- By the kind of the finding --------------------------------------------------------


def _by_kind(case: Case, finding: Finding) -> RootCause:
    """The cause by the kind of the finding and the activity of the culprits."""
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
        found = (
            _to_another(case, finding)
            or _all_one_way(case, finding)
            or _in_other_loops(case, finding)
        )
    elif what is What.DIFFERENT_ARGUMENT:
        found = _of_messages(finding) or _sized(case, finding)
    else:
        found = None
    if found is not None:
        return found
    site = finding.site
    if what is What.PROCESS_GONE and not any(
        end.exception is not None for rank, end in case.ended.items() if rank in finding.culprits
    ):
        site = None  # its last call, which is not why it ended
    lines = {(at.file, at.line) for at in (site, finding.victim_site) if at is not None}
    two = what is What.DIFFERENT_ARGUMENT and len(lines) > 1
    why = reasons.AT_TWO_LINES if two else reasons.of_kind(what)
    sure = Certainty.PROVED
    if what in _SYMPTOMS and not (what is What.NETWORK and finding.reason is Reason.NETWORK):
        sure = Certainty.POSSIBLE
    elif what is What.DIFFERENT_ARGUMENT:
        sure = Certainty.LIKELY if _is_one_call(case, finding) else Certainty.POSSIBLE
    return RootCause(what, finding.certainty.at_most(sure), site, why)


def _of_messages(finding: Finding) -> RootCause | None:
    """The tag or the group on which the two sides of a message do not agree."""
    why = reasons.OF_MESSAGES.get(finding.differs)
    if why is None:
        return None
    site = finding.victim_site if finding.differs == PEER else finding.site
    return finding.cause(What.DIFFERENT_ARGUMENT, Certainty.PROVED, site, why)


def _sized(case: Case, finding: Finding) -> RootCause | None:
    """The line that makes a size depend on the data of the rank, or a root on its own values."""
    at = position(case, finding.culprits[0]) if finding.culprits else None
    search = _BACK_TO.get(finding.differs)
    if search is None or finding.different_calls or finding.site is None:
        return None
    line = line_at(finding.site)
    above = at.frames[:-1] if at is not None and at.line == line else ()
    found = search(case.source.program, line, above)
    if found is None:
        return None
    site = case.site_of_line(*found)
    sized = finding.differs == Differs.SHAPE
    why = reasons.sized_by_data(site) if sized else reasons.put_by_rank(site)
    return finding.cause(What.DIFFERENT_ARGUMENT, Certainty.POSSIBLE, site, why)


def _stuck(case: Case, finding: Finding) -> RootCause:
    """A line that does not finish, and the reason for its wait."""
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
            site = case.wait_site(wait)
            return finding.cause(What.DIFFERENT_ARGUMENT, Certainty.LIKELY, site, why)
    return None


def _all_one_way(case: Case, finding: Finding) -> RootCause | None:
    """The condition that led all culprits to one call, whose other branch has the counterpart."""
    site, sides = finding.site, _directions(finding)
    if site is None or site != finding.victim_site or len(sides) != 1:
        return None
    missing = _RECEIVING if sides.pop() else _SENDING
    at = position(case, finding.culprits[0]) or Position((line_at(site),))
    for line in at.frames[::-1]:
        node = _turning_from(case.source.program, line, missing)
        if node is not None:
            of_rank = case.source.asks_for_rank(line.file, node.test, strictly=True)
            what = What.RANK_CONDITION if of_rank else What.DATA_CONDITION
            where = case.site_of_line(line.file, node.lineno)
            why = reasons.all_one_way(finding.culprits, where)
            return finding.cause(what, Certainty.PROVED, where, why)
    return None


def _in_other_loops(case: Case, finding: Finding) -> RootCause | None:
    """The loops that two ranks send in, or receive in, of which each is in one of its own."""
    ranks = finding.culprits[:2]
    places = [at for rank in ranks if (at := position(case, rank)) is not None]
    if len(_directions(finding)) != 1 or len(places) < 2:  # noqa: PLR2004 (a pair)
        return None
    found = []
    for one in (0, 1):
        loop = _own_loop(case.source.program, places[one], places[1 - one])
        if loop is not None:
            site = case.site_of_line(*loop)
            why = reasons.in_loop_alone(ranks[one], ranks[1 - one], site)
            found.append(finding.cause(What.UNMATCHED_P2P, Certainty.POSSIBLE, site, why))
    return replace(found[0], others=tuple(found[1:])) if found else None


def _directions(finding: Finding) -> set[bool]:
    """The directions of the messages that ranks wait for: True for a send."""
    points = (wait.wait_point for wait in finding.waits)
    return {point.sends for point in points if isinstance(point, Channel)}


def _own_loop(program: Program, mine: Position, theirs: Position) -> Line | None:
    """The innermost loop that contains one position, and not another."""
    for line in mine.frames[::-1]:
        scope = program.scope_at(line)
        loops = program.loops_in(scope) if scope is not None else ()
        for loop in sorted(loops, key=lambda node: -node.lineno):
            inside = [one for one in theirs.frames if one.file == line.file]
            if in_body(loop, line.number):
                shared = any(in_body(loop, one.number) for one in inside)
                return None if shared else Line(line.file, loop.lineno)
    return None


def _turning_from(program: Program, line: Line, missing: set[str]) -> ast.If | None:
    """The condition around a line whose other branch makes one of some calls, or its helper."""
    for node in nodes_around(program, line, ast.If):
        ways = ways_at(program, line, node)
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
    if finding.different_calls:
        return What.UNKNOWN  # calls of one operation, and not one call
    busy = finding.reason not in OF_THE_PROGRAM or are_busy(case, finding)
    if finding.kind is Kind.MISSING_PEER and busy:
        return What.STUCK_LINE
    if finding.kind is Kind.FINISHED_EARLY and isinstance(finding.wait_point, Channel):
        return What.UNMATCHED_P2P
    return _BY_REASON.get(finding.reason) or _BY_KIND.get(finding.kind) or What.UNKNOWN


def _is_one_call(case: Case, finding: Finding) -> bool:
    """Return True if all members of a slot are in one call, by all that is known.

    C++ issues buckets that may be skipped. And if a line makes calls of one size after another, a
    rank that skipped a call is at the next one.
    """
    records = case.records_at(finding.wait_point)
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
