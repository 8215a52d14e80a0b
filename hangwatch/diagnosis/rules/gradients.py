"""Why a rank does not average gradients that its peers do, where no line leads past it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from hangwatch.diagnosis.facts.history import NO_SYNC, lines_of, uneven
from hangwatch.diagnosis.facts.wait_points import Place, WaitPoint
from hangwatch.diagnosis.rules.case import MOST_COMPARED, Case, Finding
from hangwatch.diagnosis.source.program import Program
from hangwatch.diagnosis.source.syntax import Function, own
from hangwatch.diagnosis.text import reasons
from hangwatch.diagnosis.text.phrases import Ranks
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, What
from hangwatch.model.verdict import RootCause

_NOT_REDUCED = re.compile(r"Expected to have finished reduction in the prior iteration")
"""torch/csrc/distributed/c10d/reducer.cpp."""
_DDP = "DistributedDataParallel"
_PARTED = {Kind.OP_MISMATCH, Kind.SUBSET_ENTERED, Kind.FINISHED_EARLY, Kind.SIGNATURE_MISMATCH}


def kept_local(case: Case, finding: Finding) -> RootCause | None:
    """By no_sync(): culprits were in it more often than the others, who wait in the bucket.

    Or less often, and they are in a bucket that the others left out.
    """
    place = finding.wait_point
    if not isinstance(place, Place) or finding.kind not in _PARTED:
        return None
    culprits, others = finding.culprits, _others(case, finding, place)
    for site, mine, theirs in uneven(case.job.ranks, NO_SYNC, culprits, others):
        if any(_reduces(case, rank, place) for rank in (others if mine > theirs else culprits)):
            why = reasons.kept_local(culprits, mine, others, theirs)
            certainty = finding.certainty.at_most(Certainty.LIKELY)
            line = with_source(site, case.texts)
            return RootCause(What.NO_SYNC, certainty, line, why, (why,))
    return None


def differs_in_no_sync(case: Case, wait_point: WaitPoint | None, some: Ranks) -> bool:
    """Whether some members of a group alone were in no_sync() more or less often than the rest."""
    if not isinstance(wait_point, Place):
        return False
    rest = (rank for rank in case.job.members(wait_point.gid) if rank not in some)
    others = tuple(islice(rest, MOST_COMPARED))
    return len(others) > len(some) and bool(uneven(case.job.ranks, NO_SYNC, some, others))


def left_without(case: Case, finding: Finding) -> RootCause | None:
    """A parameter that gets no gradient: a bucket is reduced once all of its gradients are there.

    As torch says itself in the step after. Else only where nothing in the source leads past the
    backward pass in which the others wait; and then first no_sync(), where the ranks use it.
    """
    ends = [case.ended[rank] for rank in finding.culprits if rank in case.ended]
    told = [end.exception for end in ends if end.exception is not None]
    if told and all(_NOT_REDUCED.search(one.message) for one in told):
        why = reasons.no_gradient(finding.culprits)
        certainty = finding.certainty.at_most(Certainty.LIKELY)
        return RootCause(What.UNUSED_PARAMETER, certainty, _to_change(case, finding), why, (why,))
    place = finding.wait_point
    apart = finding.kind in (Kind.OP_MISMATCH, Kind.SIGNATURE_MISMATCH)
    if (
        not isinstance(place, Place)
        or not apart
        or not (_is_read(case, finding) and _uses_ddp(case))
    ):
        return None
    others = _others(case, finding, place)
    left_out = not any(_reduces(case, rank, place) for rank in finding.culprits)
    if not left_out or not any(_reduces(case, rank, place) for rank in others):
        return None
    why = reasons.bucket_left_out(finding.culprits, finding.victim_site)
    site = _to_change(case, finding)
    unused = RootCause(What.UNUSED_PARAMETER, Certainty.POSSIBLE, site, why, (why,))
    used = lines_of(case.job.ranks, NO_SYNC, (*finding.culprits, *others))
    if not used:
        return unused
    why = reasons.in_another_step(finding.culprits)
    line = with_source(used[0], case.texts)
    return RootCause(What.NO_SYNC, Certainty.POSSIBLE, line, why, (why,), (unused,))


def _others(case: Case, finding: Finding, place: Place) -> tuple[int, ...]:
    rest = (rank for rank in case.job.members(place.gid) if rank not in finding.culprits)
    return tuple(islice(rest, MOST_COMPARED))


def _reduces(case: Case, rank: int, place: Place) -> bool:
    """Whether C++ has issued the call of a rank, as it does of gradients."""
    record = case.job.record(rank, place)
    if record is None:
        return case.job.arrived(rank, place)
    return record.source == "flight" and record.wire == "all_reduce"


def _is_read(case: Case, finding: Finding) -> bool:
    """Whether the source of both sides is there, so that a way past it would have been found."""
    sites = (finding.site, finding.victim_site)
    return all(site is not None and case.source.tree(site.file) is not None for site in sites)


def _uses_ddp(case: Case) -> bool:
    return any(_DDP in text for text in case.texts.values())


def _to_change(case: Case, finding: Finding) -> Site | None:
    """Where a part of the model is left out, else where it is made or its gradients are."""
    return _branch_of_model(case) or _made_at(case) or finding.victim_site


def _made_at(case: Case) -> Site | None:
    """The line that makes the replicated model, if it is one."""
    lines = [case.source.program.only_call(name) for name in (_DDP, "DDP")]
    found = [line for line in lines if line is not None]
    return case.site_of_line(*found[0]) if len(found) == 1 else None


def _branch_of_model(case: Case) -> Site | None:
    """The condition below which a model calls a part of it, if it is one."""
    program = case.source.program
    lines = list(_branches(program, program.named.get("forward", ())))
    return case.site_of_line(*lines[0]) if len(lines) == 1 else None


def _branches(program: Program, scopes: Iterable[Function]) -> Iterator[tuple[str, int]]:
    for scope in scopes:
        for node in own(scope):
            if isinstance(node, ast.If) and any(map(_calls_part, (*node.body, *node.orelse))):
                yield program.files[scope], node.lineno


def _calls_part(statement: ast.stmt) -> bool:
    """Whether a statement calls ``self.part(...)``."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
        for node in ast.walk(statement)
    )
