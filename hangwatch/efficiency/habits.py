"""Inefficient training habits of the ranks of a node: facts of the ranks in, notes for people out.

A habit counts only where it shows on every rank at hand, and anything that could explain it
otherwise silences it. Pure: no clock, no files. The agent gathers the facts (agent/habits.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hangwatch.model import codec
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Cost
from hangwatch.model.page import RankPage
from hangwatch.model.report import Note
from hangwatch.text import the_ranks

MAX_BYTES = 1 << 20
LEAST_EPOCHS = 2
LEAST_STEPS = 10
LEAST_SYNCS = 1.75
"""Averages a step that are certainly no exception, like a step that was skipped."""
LEAST_READINGS = 20
_SAMPLED_EVERY = 100
"""torch counts its iterations exactly only up to 10 (kDDPRuntimeLoggingSampleRate)."""
_LEAST_ITERATIONS = 2 * _SAMPLED_EVERY
_SET_UP_CALLS = 32
"""Collectives that a module issues when it is made and at its first passes, at most."""
_UNKNOWN_SHARE = 1.1
"""Collectives issued by those explained, beyond which something else averages too."""


@dataclass(frozen=True, slots=True)
class SamplerFacts:
    """A DistributedSampler that shuffles, with which the model was trained."""

    site: Site
    """The loop over the loader that uses it."""
    epochs: int
    """Loops over it in which the model was trained."""
    orders: int
    """Different sums of seed and epoch, from which their orders were made."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A DistributedDataParallel module, at the last time that torch updated its own counts."""

    site: Site
    """The line that made it."""
    slot: int
    """Slot in the page of the group that averages its gradients."""
    iteration: int
    """Forward passes that were to be followed by an average; at most 99 more by then."""
    calls: int
    """Collectives of the group by then, from Python and from C++; -1 where not known."""
    steps: int
    """Steps that an optimizer of torch's own made by then, at most; -1 where not known."""
    buckets: int
    broadcasts: int
    """Collectives that synchronise buffers, a forward pass; -1 where not known."""
    hooked: bool
    """True if a communication hook decides what is issued."""
    find_unused: bool
    readings: int
    """Different iterations that were looked at."""
    unused_readings: int
    """Those of them with unused parameters."""
    uneven: bool
    """True if some parameters were changed less often than others."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The habits of one rank, as it left them next to its page."""

    loaders: tuple[SamplerFacts, ...]
    replicas: tuple[ReplicaFacts, ...]


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank: its page, and its facts."""

    rank: int
    page: RankPage
    facts: Facts


@dataclass(frozen=True, slots=True)
class Finding:
    """A habit that is certain."""

    cost: Cost
    ranks: tuple[int, ...]
    site: Site | None = None
    count: int = 0
    """Epochs in one order; iterations that were looked at; averages a step; the GPU's index."""
    other: int = 0
    """Steps; GPUs that lie idle."""


def parse_facts(data: bytes) -> Facts:
    """Decode the facts that a rank wrote. Raises CodecError for anything else."""
    facts: Facts = codec.loads(Facts, data, MAX_BYTES)
    return facts


def find_costs(ranks: Sequence[RankFacts]) -> tuple[Finding, ...]:
    """Return the habits that all of these ranks, those of one node, have."""
    findings = (_same_order(ranks), _each_batch(ranks), _unused_search(ranks))
    return tuple(finding for finding in findings if finding is not None)


def _same_order(ranks: Sequence[RankFacts]) -> Finding | None:
    """Every epoch went through the data in the same order."""
    for first in ranks[0].facts.loaders if ranks else ():
        loops = [one for rank in ranks for one in rank.facts.loaders if one.site == first.site]
        epochs = min(loop.epochs for loop in loops)
        complete = len(loops) == len(ranks) and first.site.file
        if complete and epochs >= LEAST_EPOCHS and all(loop.orders == 1 for loop in loops):
            return Finding(Cost.SAME_ORDER, _numbers(ranks), first.site, epochs)
    return None


def _each_batch(ranks: Sequence[RankFacts]) -> Finding | None:
    """Gradients were averaged several times for one step of the optimizer."""
    counts = [_averages(rank) for rank in ranks]
    if not counts or not all(counts):
        return None
    first = ranks[0].facts.replicas[0]
    return Finding(Cost.SYNC_EACH_BATCH, _numbers(ranks), first.site, counts[0], first.steps)


def _averages(rank: RankFacts) -> int:
    """About how many averages were made for each step; 0 where one may have been enough."""
    if len(rank.facts.replicas) != 1:
        return 0  # it is not known whose averages they are
    (one,) = rank.facts.replicas
    group = next((group for group in rank.page.groups if group.slot == one.slot), None)
    known = one.calls >= 0 and one.broadcasts >= 0 and one.buckets > 0 and not one.hooked
    if group is None or not known:
        return 0
    if one.iteration < _LEAST_ITERATIONS or one.steps < LEAST_STEPS:
        return 0
    average = one.buckets + one.find_unused
    forwards = one.iteration + _SAMPLED_EVERY
    issued = one.calls - group.entered - group.p2p
    explained = forwards * (average + one.broadcasts) + _SET_UP_CALLS
    # What is left when each forward pass has had its broadcasts are averages.
    least = (issued - forwards * one.broadcasts - _SET_UP_CALLS) / average
    if least < LEAST_SYNCS * one.steps or issued > explained * _UNKNOWN_SHARE:
        return 0
    return round((issued - one.iteration * one.broadcasts) / average / one.steps)


def _unused_search(ranks: Sequence[RankFacts]) -> Finding | None:
    """Each pass looks for unused parameters, and none was ever found."""
    found: list[ReplicaFacts] = []
    for rank in ranks:
        searching = [one for one in rank.facts.replicas if one.find_unused]
        if not searching or any(
            one.readings < LEAST_READINGS or one.unused_readings or one.uneven for one in searching
        ):
            return None
        found.append(searching[0])
    if not found:
        return None
    looked_at = min(one.readings for one in found)
    return Finding(Cost.UNUSED_SEARCH, _numbers(ranks), found[0].site, looked_at)


def _numbers(ranks: Sequence[RankFacts]) -> tuple[int, ...]:
    return tuple(rank.rank for rank in ranks)


_DOCS = "https://docs.pytorch.org/docs/stable"
_DDP = f"{_DOCS}/generated/torch.nn.parallel.DistributedDataParallel.html"


class _Words(NamedTuple):
    """The first three are format strings over a finding."""

    what: str
    costs: str
    advice: str
    link: str


_TABLE = {
    Cost.ONE_GPU: _Words(
        "{Who}, all that are on this node, used GPU {count}, while {other} other{s} lay idle.",
        "They shared the memory and the time of one device.",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything uses CUDA.",
        f"{_DOCS}/generated/torch.cuda.set_device.html",
    ),
    Cost.SAME_ORDER: _Words(
        "Each of {count} epochs went through the data in the same order on {who}: set_epoch was "
        "not called on the DistributedSampler.",
        "The batches are the same ones in every epoch, so that shuffle=True is without effect "
        "after the first.",
        "Call sampler.set_epoch(epoch) at the beginning of each epoch, before the loop over the "
        "DataLoader.",
        f"{_DOCS}/data.html#torch.utils.data.distributed.DistributedSampler",
    ),
    Cost.SYNC_EACH_BATCH: _Words(
        "Gradients were averaged over all ranks about {count} times for each of {other} optimizer "
        "steps, in every backward pass, by {who}.",
        "One average a step is enough: all others only took time on the network.",
        "Run all backward passes but the last before a step, with their forward passes, inside "
        "`with model.no_sync():`.",
        f"{_DDP}#torch.nn.parallel.DistributedDataParallel.no_sync",
    ),
    Cost.UNUSED_SEARCH: _Words(
        "find_unused_parameters=True, but none of the {count} iterations that were looked at on "
        "each of {who} had an unused parameter.",
        "Each iteration goes through the whole autograd graph once more, and issues one more "
        "all_reduce.",
        "Leave find_unused_parameters out, unless some batches do skip a part of the model.",
        _DDP,
    ),
}


def note_of(finding: Finding) -> Note:
    """Return the note that reports print on a habit."""
    words = _TABLE[finding.cost]
    who = the_ranks(finding.ranks)
    values = {
        "who": who,
        "Who": f"{who[0].upper()}{who[1:]}",
        "count": finding.count,
        "other": finding.other,
        "s": "" if finding.other == 1 else "s",
    }
    return Note(
        finding.cost,
        finding.ranks,
        words.what.format_map(values),
        words.costs.format_map(values),
        words.advice,
        words.link,
        finding.site,
    )
