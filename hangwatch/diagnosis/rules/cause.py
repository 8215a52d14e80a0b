"""Why the culprits of a finding did what they did: the line at which their way parted.

By the choices that the source shows; and by what was seen besides: exceptions, threads that ended,
gradients that were kept local, and what a loop goes over.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from hangwatch.diagnosis.rules.by_kind import without_choice
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.rules.choices import Read, has_parted
from hangwatch.diagnosis.rules.gradients import kept_local, left_without
from hangwatch.diagnosis.rules.order import without_order
from hangwatch.diagnosis.rules.splits import position
from hangwatch.diagnosis.source.flow import Choice, Turn
from hangwatch.diagnosis.source.origins import conditions_in_callbacks, set_for_few
from hangwatch.diagnosis.source.program import Line
from hangwatch.diagnosis.source.syntax import retried_by
from hangwatch.diagnosis.source.values import early_ends, taken_before
from hangwatch.diagnosis.text import reasons
from hangwatch.diagnosis.text.reasons import Parted
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, What
from hangwatch.model.verdict import RootCause

MOST_OTHERS = 3
LATELY_S = 30.0
"""A thread that ended so long before others waited may still have been missed only then."""


def cause_of(case: Case, finding: Finding, found: Sequence[Read]) -> RootCause:
    """Why it came to a finding, unknown where nothing tells.

    found: what the source shows of it (choices_of).
    """
    local = kept_local(case, finding) or without_order(case, finding)
    if local is not None:
        return local
    unwinding = _of_exception(case, finding, found)
    if not found:
        return (
            left_without(case, finding)
            or unwinding
            or _by_retry(case, finding)
            or without_order(case, finding, apart=True)
            or _by_callback(case, finding)
            or without_choice(case, finding)
        )
    alone = len(found) == 1 and not found[0].around
    sure = Certainty.LIKELY if alone else Certainty.POSSIBLE
    certainty = finding.certainty.at_most(sure)
    causes = [_cause(case, read, certainty) for read in found]
    handled = case.exception_of(finding.culprits)
    if handled is not None and causes[0].what is What.SWALLOWED_EXCEPTION:
        seen = (*causes[0].evidence, reasons.handling(finding.culprits, handled))
        causes[0] = replace(causes[0], evidence=seen)
    thread, ends = _of_thread(case, finding, found[0]), _early_ends(case, finding, found[0])
    few = _set_for_few(case, found[0])
    causes = [*filter(None, (unwinding, thread)), *ends, *filter(None, (few,)), *causes]
    return replace(causes[0], others=tuple(causes[1 : 1 + MOST_OTHERS]))


def _of_exception(case: Case, finding: Finding, found: Sequence[Read]) -> RootCause | None:
    """An exception that culprits are handling, where they are in another call than the others.

    None where the source shows what has caught it.
    """
    handled = case.exception_of(finding.culprits) if has_parted(case, finding) else None
    if handled is None or any(read.choice.turn is Turn.EXCEPTION for read in found):
        return None
    why = reasons.handling(finding.culprits, handled)
    site = with_source(handled.site, case.texts)
    certainty = finding.certainty.at_most(Certainty.LIKELY)
    return RootCause(What.SWALLOWED_EXCEPTION, certainty, site, why, (why,))


def _of_thread(case: Case, finding: Finding, read: Read) -> RootCause | None:
    """The end of a thread, where a loop that it should feed ended earlier on its rank."""
    died = case.thread_that_died(finding.culprits)
    if died is None or read.choice.turn is not Turn.LOOP or read.choice.taken:
        return None
    why = reasons.ended_thread(finding.culprits, died)
    waited_s = max((wait.age_s for wait in finding.waits), default=0.0)
    lately = died.age_s - waited_s < LATELY_S
    certainty = finding.certainty.at_most(Certainty.LIKELY if lately else Certainty.POSSIBLE)
    site = with_source(died.site, case.texts)
    return RootCause(What.SWALLOWED_EXCEPTION, certainty, site, why, (why,))


def _early_ends(case: Case, finding: Finding, read: Read) -> list[RootCause]:
    """What took from the iterator that a loop goes over, or by what its generator ended early."""
    if not isinstance(read.node, ast.For) or read.choice.turn is not Turn.LOOP or read.choice.taken:
        return []
    file, program = read.choice.file, case.source.program
    taken = taken_before(program, file, read.node)
    if taken is not None:
        site = case.site_of_line(*taken)
        why = reasons.taken_before(read.site, site)
        return [RootCause(What.UNEVEN_LOOP, Certainty.POSSIBLE, site, why, (why,))]
    sites = [case.site_of_line(*line) for line in early_ends(program, file, read.node)]
    return [
        RootCause(What.EARLY_EXIT, Certainty.POSSIBLE, site, why, (why,))
        for site in sites
        if (why := reasons.ended_generator(read.site, site, finding.culprits))
    ]


def _set_for_few(case: Case, read: Read) -> RootCause | None:
    """The condition on the rank below which something is set that a choice depends on."""
    test, file = read.choice.test, read.choice.file
    if read.what is What.RANK_CONDITION or test is None or read.choice.turn is Turn.EXCEPTION:
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
    return RootCause(What.RANK_CONDITION, Certainty.POSSIBLE, site, why, (why,))


def _by_retry(case: Case, finding: Finding) -> RootCause | None:
    """What repeats a call that raised, where culprits are within it and nothing else is found."""
    at = position(case, finding.culprits[0]) if has_parted(case, finding) else None
    for line in at.frames[::-1] if at is not None else ():
        handler = retried_by(case.source.program.scope_at(line), line.number)
        if handler is not None:
            site = case.site_of_line(line.file, handler.lineno)
            why = reasons.repeated(site, finding.culprits)
            return RootCause(What.SWALLOWED_EXCEPTION, Certainty.POSSIBLE, site, why, (why,))
    return None


def _by_callback(case: Case, finding: Finding) -> RootCause | None:
    """What may have told a library on one rank alone what to do, where all are in one call of it.

    The only such condition that asks for the rank, else the only one at all.
    """
    sites = (finding.site, finding.victim_site)
    lines = {(one.file, one.line) if one and one.call else None for one in sites}
    if not has_parted(case, finding) or len(lines) > 1 or None in lines:
        return None
    source = case.source
    found = [
        (line, test)
        for line, test in conditions_in_callbacks(source.program)
        if not source.is_alike(line.file, test)
    ]
    by_rank = [line for line, test in found if source.asks_for_rank(line.file, test, strictly=True)]
    told = by_rank or [line for line, _ in found]
    if len(told) != 1:
        return None
    site = case.site_of_line(*told[0])
    why = reasons.in_callback(site)
    what = What.RANK_CONDITION if by_rank else What.DATA_CONDITION
    return RootCause(what, Certainty.POSSIBLE, site, why, (why,))


def _cause(case: Case, read: Read, certainty: Certainty) -> RootCause:
    split = read.split
    lines = (split.start, split.mine.line, split.theirs.line)
    places = (line and case.site_of_line(*line) for line in lines)
    parted = Parted(read.culprits, split.other, *places)
    why = reasons.of_choice(read.what, read.site, read.choice, parted)
    return RootCause(read.what, certainty, read.site, why, reasons.evidence(parted))
