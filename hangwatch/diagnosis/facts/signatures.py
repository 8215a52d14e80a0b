"""Whether the members of a place agree on what they entered there."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hangwatch.operations import OPERATIONS, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hangwatch.types.snapshot import OpRecord

_UNKNOWN = Operation("")


class Differs(StrEnum):
    """In what the members of a place differ."""

    OP = "op"
    ROOT = "root"
    DTYPE = "dtype"
    SHAPE = "shape"
    ORIGIN = "origin"
    """The same call, made by the user's code here and by C++ there."""


@dataclass(frozen=True, slots=True)
class Split:
    """The members of a place by what they entered, the most numerous first."""

    differs: Differs
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    """(what, ranks) pairs; ``what`` as people read it."""


def split(records: Mapping[int, OpRecord]) -> Split | None:
    """How the known members of a place disagree, None if they do not."""
    alike = {(r.wire, r.root, r.dtype, r.shape, r.source) for r in records.values()}
    if len(alike) <= 1:
        return None  # as nearly always: the rest takes its time
    known = {rank: record for rank, record in records.items() if record.wire}
    found = _split(Differs.OP, known, wire_key(known.values()))
    if found is not None or not known:
        return found
    operation = _operation(next(iter(known.values())).wire)
    if operation.rooted:
        rooted = {rank: record for rank, record in known.items() if record.root >= 0}
        found = _split(Differs.ROOT, rooted, lambda record: f"root {record.root}")
    if found is None and operation.equal_sizes:
        found = _sizes(known)
    return found


def wire_key(records: Iterable[OpRecord]) -> Callable[[OpRecord], str]:
    """The name to compare operations by.

    Records of one source are compared as they are, those of two sources by the
    coarser names that gloo's recorder knows.
    """
    one_source = len({record.source for record in records}) <= 1
    if one_source:
        return lambda record: _base(record.wire)
    return lambda record: _operation(record.wire).by_gloo or _base(record.wire)


def _base(wire: str) -> str:
    return wire.removesuffix("_coalesced")


def _operation(wire: str) -> Operation:
    return OPERATIONS.get(_base(wire), _UNKNOWN)


def _sizes(known: Mapping[int, OpRecord]) -> Split | None:
    """A difference in dtype or number of elements, in records that may be compared."""
    one_tensor = all(OPERATIONS.get(record.wire, _UNKNOWN).one_tensor for record in known.values())
    by_source: dict[str, dict[int, OpRecord]] = defaultdict(dict)
    for rank, record in known.items():
        if not record.wire.endswith("_coalesced"):
            by_source["" if one_tensor else record.source][rank] = record
    # gloo's recorder calls a reduce_scatter all_reduce, with one rank's part as its size:
    # there too the sizes are equal.
    for records in by_source.values():
        typed = {rank: record for rank, record in records.items() if record.dtype}
        found = _split(Differs.DTYPE, typed, lambda record: _dtype(record.dtype))
        found = found or _split(Differs.SHAPE, typed, _elements)
        if found is not None:
            return _with_shapes(found, records)
    return None


def _dtype(name: str) -> str:
    return name.removeprefix("torch.").lower()


def _elements(record: OpRecord) -> str:
    return str(math.prod(record.shape))


def _with_shapes(found: Split, records: Mapping[int, OpRecord]) -> Split:
    if found.differs is not Differs.SHAPE:
        return found
    return Split(
        found.differs,
        tuple((f"shape {list(records[ranks[0]].shape)}", ranks) for _, ranks in found.parts),
    )


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
