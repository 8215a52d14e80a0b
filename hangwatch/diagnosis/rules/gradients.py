"""Finds the cause for which a rank does not average gradients that its peers do."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from itertools import islice

from hangwatch.diagnosis.facts.history import NO_SYNC, lines_of, uneven
from hangwatch.diagnosis.facts.wait_points import Slot, WaitPoint
from hangwatch.diagnosis.rules.case import MOST_COMPARED, Case, Finding
from hangwatch.diagnosis.source.syntax import own
from hangwatch.diagnosis.text import reasons
from hangwatch.diagnosis.text.phrases import Ranks
from hangwatch.model.calls import Site
from hangwatch.model.frames import with_source
from hangwatch.model.kinds import Certainty, Kind, What
from hangwatch.model.verdict import RootCause

_NOT_REDUCED = re.compile(r"Expected to have finished reduction in the prior iteration")
"""torch/csrc/distributed/c10d/reducer.cpp."""
_DDP = "DistributedDataParallel"
_DIVERGED = {Kind.OP_MISMATCH, Kind.SUBSET_ENTERED, Kind.FINISHED_EARLY, Kind.SIGNATURE_MISMATCH}


def kept_local(case: Case, finding: Finding) -> RootCause | None:
    """The no_sync() that culprits used more often than the others, which wait in the bucket.

    Or less often, and they are in a bucket that the others did not reduce.
    """
    slot = finding.wait_point
    if not isinstance(slot, Slot) or finding.kind not in _DIVERGED:
        return None
    culprits = finding.culprits
    others = _others(case, culprits, slot)
    for site, mine, theirs in uneven(case.job.ranks, NO_SYNC, culprits, others):
        if any(_reduces(case, rank, slot) for rank in (others if mine > theirs else culprits)):
            why = reasons.kept_local(culprits, mine, others, theirs)
            line = with_source(site, case.texts)
            return finding.cause(What.NO_SYNC, Certainty.LIKELY, line, why)
    return None


def differs_in_no_sync(case: Case, wait_point: WaitPoint | None, some: Ranks) -> bool:
    """Return True if only some members of a group were in no_sync() more or less often."""
    if not isinstance(wait_point, Slot):
        return False
    others = _others(case, some, wait_point)
    return len(others) > len(some) and bool(uneven(case.job.ranks, NO_SYNC, some, others))


def left_without(case: Case, finding: Finding) -> RootCause | None:
    """A parameter that gets no gradient: a bucket is reduced once all of its gradients are there.

    As torch reports in the next step. Otherwise only if no path in the source leads past the
    backward pass in which the others wait; and then first no_sync(), where the ranks use it.
    """
    culprits, slot = finding.culprits, finding.wait_point
    ends = [case.ended[rank] for rank in culprits if rank in case.ended]
    raised = [end.exception.message for end in ends if end.exception is not None]
    if raised and all(map(_NOT_REDUCED.search, raised)):
        why, site = reasons.no_gradient(culprits), _to_change(case, finding)
        return finding.cause(What.UNUSED_PARAMETER, Certainty.LIKELY, site, why)
    may_differ = finding.kind in (Kind.OP_MISMATCH, Kind.SIGNATURE_MISMATCH)
    if not isinstance(slot, Slot) or not may_differ or not _is_read(case, finding):
        return None
    others = _others(case, culprits, slot)
    left_out = not any(_reduces(case, rank, slot) for rank in culprits)
    if not left_out or not any(_reduces(case, rank, slot) for rank in others):
        return None
    why, site = reasons.bucket_left_out(culprits, finding.victim_site), _to_change(case, finding)
    unused = finding.cause(What.UNUSED_PARAMETER, Certainty.POSSIBLE, site, why)
    used = lines_of(case.job.ranks, NO_SYNC, (*culprits, *others))
    if not used:
        return unused
    line = with_source(used[0], case.texts)
    why = reasons.in_another_step(culprits)
    return replace(finding.cause(What.NO_SYNC, Certainty.POSSIBLE, line, why), others=(unused,))


def _others(case: Case, culprits: Ranks, slot: Slot) -> Ranks:
    rest = (rank for rank in case.job.members(slot.gid) if rank not in culprits)
    return tuple(islice(rest, MOST_COMPARED))


def _reduces(case: Case, rank: int, slot: Slot) -> bool:
    """Return True if C++ has issued the call of a rank, as it does of gradients."""
    record = case.job.record(rank, slot)
    if record is None:
        return case.job.arrived(rank, slot)
    return record.source == "flight" and record.wire == "all_reduce"


def _is_read(case: Case, finding: Finding) -> bool:
    """Return True if the source of both sides is there and uses DDP: a path would be found."""
    sites = (finding.site, finding.victim_site)
    return all(
        site is not None and case.source.tree(site.file) is not None for site in sites
    ) and any(_DDP in text for text in case.texts.values())


def _to_change(case: Case, finding: Finding) -> Site | None:
    """The line that skips a part of the model, or else that creates it, or its gradients."""
    return _branch_of_model(case) or _made_at(case) or finding.victim_site


def _made_at(case: Case) -> Site | None:
    """The line that makes the replicated model, if it is one."""
    lines = [case.source.program.only_call(name) for name in (_DDP, "DDP")]
    found = [line for line in lines if line is not None]
    return case.site_of_line(*found[0]) if len(found) == 1 else None


def _branch_of_model(case: Case) -> Site | None:
    """The condition below which a model calls a part of it, if it is one."""
    program = case.source.program
    lines = [
        (program.files[scope], node.lineno)
        for scope in program.named.get("forward", ())
        for node in own(scope)
        if isinstance(node, ast.If) and any(map(_calls_part, (*node.body, *node.orelse)))
    ]
    return case.site_of_line(*lines[0]) if len(lines) == 1 else None


def _calls_part(statement: ast.stmt) -> bool:
    """Return True if a statement calls ``self.part(...)``."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
        for node in ast.walk(statement)
    )
