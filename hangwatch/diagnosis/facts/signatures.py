"""Compares the calls that the members of a group entered at one sequence number."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from hangwatch.diagnosis.facts.history import step
from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.wait_points import Slot
from hangwatch.model.kinds import OpState
from hangwatch.model.operations import OPERATIONS, Operation
from hangwatch.model.snapshot import OpRecord


@dataclass(frozen=True, slots=True)
class Misfit:
    """A pair of ranks of which one sends another amount than the other takes."""

    sender: int
    receiver: int
    sent: int
    taken: int
    unit: str
    """``row``; ``byte`` where their rows differ; ``element`` where a Flight Recorder has it."""


def misfits(records: Mapping[int, OpRecord]) -> list[Misfit]:
    """The pairs that do not match, of calls of one sequence number that all members have made.

    If a member is missing, the others wait for it in any case.
    """
    first = next(iter(records.values()), None)
    if first is None or not first.wire.startswith("all_to_all"):
        return []  # as nearly always
    ranks = first.group.ranks
    if not records.keys() >= {*ranks}:
        return []
    calls = [records[rank] for rank in ranks]
    found = []
    for (sender, theirs), (receiver, mine) in product(enumerate(calls), repeat=2):
        if mine.source != theirs.source or mine.state is theirs.state is OpState.DONE:
            continue  # it is not known, or there was room enough
        sends, takes = theirs.sends, mine.receives
        unit, sizes = ("row" if mine.source == "page" else "element"), (1, 1)
        rows = _bytes_of_row(theirs), _bytes_of_row(mine)
        if unit == "row" and rows[0] != rows[1]:
            if not all(rows):
                continue
            # One that has no splits, beside one that has: those of large groups are not kept.
            sends = sends or (_even(theirs) if takes else ())
            takes = takes or (_even(mine) if sends else ())
            unit, sizes = "byte", rows
        if len(sends) != len(ranks) or len(takes) != len(ranks):
            continue
        sent, taken = sends[receiver] * sizes[0], takes[sender] * sizes[1]
        if sent != taken:
            found.append(Misfit(ranks[sender], ranks[receiver], sent, taken, unit))
    return found


def _even(call: OpRecord) -> tuple[int, ...]:
    """The splits of a call that was given none: even ones; empty where that is not known."""
    members = len(call.group.ranks)
    is_even = call.wire == "all_to_all_single" and call.shape and not call.shape[0] % members
    return (call.shape[0] // members,) * members if is_even else ()


def _bytes_of_row(call: OpRecord) -> int:
    """The bytes of a row of its tensors, 0 where the size of an element is not known."""
    return _BYTES.get(_dtype(call.dtype), 0) * math.prod(call.shape[1:])


def odd_ones(found: Sequence[Misfit]) -> tuple[int, ...]:
    """The one rank that is in all pairs; both where it is one pair, and all where none is."""
    pairs = [{pair.sender, pair.receiver} for pair in found]
    return tuple(sorted(set.intersection(*pairs) or set.union(*pairs)))


_UNKNOWN = Operation("")
_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "byte", "char"), 1),
    **dict.fromkeys(("float16", "bfloat16", "half", "int16", "short"), 2),
    **dict.fromkeys(("float32", "float", "int32", "int"), 4),
    **dict.fromkeys(("float64", "double", "int64", "long"), 8),
}
"""Bytes of an element, by the names that torch and its recorders give a dtype."""


class Differs(StrEnum):
    """The respect in which the calls of the members differ."""

    OP = "op"
    ROOT = "root"
    DTYPE = "dtype"
    SHAPE = "shape"
    SPLITS = "splits"
    """One sends a different amount than the other expects."""


@dataclass(frozen=True, slots=True)
class Split:
    """The members of a group by their calls at one sequence number, most numerous first."""

    differs: Differs
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    """(text, ranks) pairs."""


def split_of(records: Mapping[int, OpRecord]) -> Split | None:
    """Return how the calls of one sequence number disagree, None if they do not."""
    alike = {(r.wire, r.root, r.dtype, r.shape, r.source) for r in records.values()}
    if len(alike) <= 1:
        return _exchange(records)  # as nearly always: the rest takes its time
    known = {rank: record for rank, record in records.items() if record.wire}
    split = _split(Differs.OP, known, wire_key(known.values()))
    if split is not None or not known:
        return split
    operations = [_operation(record.wire) for record in known.values()]
    if operations[0].rooted:
        rooted = {rank: record for rank, record in known.items() if record.root >= 0}
        split = _split(Differs.ROOT, rooted, lambda record: f"root {record.root}")
    if split is None and all(operation.equal_sizes for operation in operations):
        split = _sizes(known)
    return split or _forms(known) or _exchange(known)


def _exchange(known: Mapping[int, OpRecord]) -> Split | None:
    """Return the ranks whose sizes do not match the others, after the others."""
    found = misfits(known)
    if not found:
        return None
    odd = odd_ones(found)
    others = tuple(sorted(known.keys() - set(odd)))
    parts = (("sizes that fit", others), ("sizes that do not", odd))
    return Split(Differs.SPLITS, parts if others else parts[1:])


def _forms(known: Mapping[int, OpRecord]) -> Split | None:
    """Return the two forms of an operation, one of them for equal sizes, if the sizes differ."""
    if len({record.source for record in known.values()}) > 1:
        return None  # some of them name both forms alike
    forms = _split(Differs.OP, known, lambda record: _base(record.wire))
    strict = any(_operation(record.wire).equal_sizes for record in known.values())
    return forms if forms is not None and strict and _sizes(known) is not None else None


def wire_key(records: Iterable[OpRecord]) -> Callable[[OpRecord], str]:
    """Return the function that names operations to compare them.

    Records of one source are compared by the operation that is run for them, records of two sources
    by the coarser names that gloo's recorder uses.
    """
    if len({record.source for record in records}) <= 1:
        return lambda record: _operation(record.wire).run_as or _base(record.wire)
    return lambda record: _operation(record.wire).by_gloo or _base(record.wire)


def _base(wire: str) -> str:
    return wire.removesuffix("_coalesced")


def _operation(wire: str) -> Operation:
    return OPERATIONS.get(_base(wire), _UNKNOWN)


def _sizes(known: Mapping[int, OpRecord]) -> Split | None:
    """Return a difference in dtype or number of elements, in records that may be compared."""
    one_tensor = all(OPERATIONS.get(record.wire, _UNKNOWN).one_tensor for record in known.values())
    by_source: dict[str, dict[int, OpRecord]] = defaultdict(dict)
    for rank, record in known.items():
        if not record.wire.endswith("_coalesced"):
            by_source["" if one_tensor else record.source][rank] = record
    # gloo's recorder calls a reduce_scatter all_reduce, with one rank's part as its size:
    # there too the sizes are equal.
    for records in by_source.values():
        typed = {rank: record for rank, record in records.items() if record.dtype}
        if _are_as_large(typed.values()):
            continue
        split = _split(Differs.DTYPE, typed, lambda record: _dtype(record.dtype))
        if split is not None:
            return split
        split = _split(Differs.SHAPE, typed, lambda record: str(math.prod(record.shape)))
        if split is not None:
            shapes = ((typed[ranks[0]].shape, ranks) for _, ranks in split.parts)
            parts = tuple((f"shape {list(shape)}", ranks) for shape, ranks in shapes)
            return Split(Differs.SHAPE, parts)
    return None


def _are_as_large(records: Iterable[OpRecord]) -> bool:
    """Return True if calls that only copy bytes copy as many."""
    sizes = {
        (_BYTES.get(_dtype(record.dtype)), math.prod(record.shape), _operation(record.wire).copies)
        for record in records
    }
    known = all(bytes_ is not None and copies for bytes_, _, copies in sizes)
    return known and len({(bytes_ or 0) * count for bytes_, count, _ in sizes}) == 1


def _dtype(name: str) -> str:
    return name.removeprefix("torch.").lower()


def _split(
    differs: Differs, records: Mapping[int, OpRecord], key: Callable[[OpRecord], str]
) -> Split | None:
    parts: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(records):
        parts[key(records[rank])].append(rank)
    if len(parts) <= 1:
        return None
    ordered = sorted(parts.items(), key=lambda part: (-len(part[1]), part[0]))
    return Split(differs, tuple((what, tuple(ranks)) for what, ranks in ordered))


LEAST = 2
"""Calls that have to agree before they count as usual."""
LASTING = (Differs.DTYPE, Differs.ROOT)
"""Respects in which a line does not differ by chance, unlike the size of a last batch."""


def usual_side(job: Job, slot: Slot, found: Split) -> tuple[int, ...] | None:
    """The side of a split that did the same as all other groups of the kind at that line.

    If there are none, the same as the members did there before, if they always did. None if that
    is not one side.
    """
    records = job.slots(slot.gid).get(slot.seq, {})
    steps = {step(record) for record in records.values()}

    def value(gid: int, record: OpRecord) -> object:
        return _value(job, gid, record, found.differs)

    siblings = [value(*call) for call in _in_siblings(job, slot) if step(call[1]) in steps]
    before = [
        value(slot.gid, record)
        for seq, made in job.slots(slot.gid).items()
        for record in made.values()
        if seq < slot.seq and step(record) in steps
    ]
    usual = siblings or (before if found.differs in LASTING else [])
    if len(usual) < LEAST or len({*usual}) > 1 or not {*before} <= {*usual}:
        return None
    sides = [
        ranks
        for _, ranks in found.parts
        if {value(slot.gid, records[rank]) for rank in ranks} == {*usual}
    ]
    return sides[0] if len(sides) == 1 else None


def _in_siblings(job: Job, slot: Slot) -> Iterator[tuple[int, OpRecord]]:
    """The calls of that number in groups of as many other ranks, and of that description."""
    key = job.keys[slot.gid]
    members = frozenset(key.ranks)
    for gid, other in enumerate(job.keys):
        alike = (other.desc, len(other.ranks)) == (key.desc, len(key.ranks))
        if alike and members.isdisjoint(other.ranks):
            for record in job.slots(gid).get(slot.seq, {}).values():
                yield gid, record


def _value(job: Job, gid: int, record: OpRecord, differs: Differs) -> object:
    """A call in one respect, of the root its position in the group."""
    match differs:
        case Differs.DTYPE:
            return record.dtype
        case Differs.SHAPE:
            return math.prod(record.shape)
        case Differs.ROOT:
            ranks = job.keys[gid].ranks
            return ranks.index(record.root) if record.root in ranks else record.root
        case _:
            return record.wire
