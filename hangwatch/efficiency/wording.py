"""Says of a costly mistake what it is, what it costs, and what to do."""

from __future__ import annotations

from typing import NamedTuple

from hangwatch.diagnosis.text.phrases import the_ranks
from hangwatch.efficiency.findings import Finding
from hangwatch.model.kinds import Cost
from hangwatch.model.report import Note

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
    Cost.SAME_DATA: _Words(
        "{Who} trained on the same data: their first {count} batches were equal, one by one.",
        "All ranks do the same work, so that the job learns no more than one rank alone would.",
        "Give the DataLoader sampler=DistributedSampler(dataset), instead of shuffle=True.",
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
    """What people are told."""
    words = _TABLE[finding.cost]
    who = the_ranks(finding.ranks)
    told = {
        "who": who,
        "Who": f"{who[0].upper()}{who[1:]}",
        "count": finding.count,
        "other": finding.other,
        "s": "" if finding.other == 1 else "s",
    }
    return Note(
        finding.cost,
        finding.ranks,
        words.what.format_map(told),
        words.costs.format_map(told),
        words.advice,
        words.link,
        finding.site,
    )
