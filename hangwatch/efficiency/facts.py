"""What one rank knows of its own practice, as it wrote it (agent/practice/practice.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hangwatch.model.calls import Site
from hangwatch.model.page import RankPage

MOST = 64
"""Entries of a list that are read."""


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A data loader that the model was trained with."""

    site: Site
    """The loop over it."""
    distributed: bool
    """Its order is that of torch's DistributedSampler alone, which shuffles."""
    epochs: int
    """Loops over it in which the model was trained."""
    orders: int
    """Different seeds and epochs that their orders were made from."""
    calls: int
    """Collectives of the group that averages gradients, in these loops."""
    digests: tuple[str, ...]
    """Of its first batches; an empty one tells nothing."""
    elements: int
    """Of the largest tensor in its first batch."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A DistributedDataParallel module, at the last time that torch updated its own counts."""

    site: Site
    """Where it was made."""
    ranks: tuple[int, ...]
    """Of the group that averages its gradients."""
    slot: int
    """Of that group in the page."""
    iteration: int
    """Forward passes that were to be followed by an average; at most 99 more by then."""
    calls: int
    """Collectives of the group by then, whoever issued them; -1 where not known."""
    steps: int
    """Steps that an optimizer of torch's own made by then, at most; -1 where not known."""
    buckets: int
    broadcasts: int
    """Collectives that synchronise buffers, a forward pass; -1 where not known."""
    hooked: bool
    """A communication hook decides what is issued."""
    find_unused: bool
    readings: int
    """Different iterations that were looked at."""
    unused_readings: int
    """Those of them with unused parameters."""
    uneven: bool
    """Some parameters were changed less often than others."""
    plain: bool
    """No parameter is itself spread over ranks."""
    elements: int
    """Of the largest tensor that went into its first forward pass."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank: its page with the events, and what it wrote beside it."""

    rank: int
    page: RankPage
    loaders: tuple[LoaderFacts, ...] = ()
    replicas: tuple[ReplicaFacts, ...] = ()


def parse_facts(rank: int, page: RankPage, data: bytes) -> RankFacts:
    """Decode what the rank wrote. Raises ValueError for anything else."""
    try:
        values = json.loads(data)
        return RankFacts(
            rank,
            page,
            tuple(_loader(one) for one in values["loaders"][:MOST]),
            tuple(_replica(one) for one in values["replicas"][:MOST]),
        )
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no facts of a rank: {error!r}") from error


def _loader(values: Mapping[str, Any]) -> LoaderFacts:
    return LoaderFacts(
        _site(values),
        bool(values["distributed"]),
        int(values["epochs"]),
        int(values["orders"]),
        int(values["calls"]),
        tuple(str(digest) for digest in values["digests"][:MOST]),
        int(values["elements"]),
    )


def _replica(values: Mapping[str, Any]) -> ReplicaFacts:
    return ReplicaFacts(
        _site(values),
        tuple(int(rank) for rank in values["ranks"]),
        int(values["slot"]),
        int(values["iteration"]),
        int(values["calls"]),
        int(values["steps"]),
        int(values["buckets"]),
        int(values["broadcasts"]),
        bool(values["hooked"]),
        bool(values["find_unused"]),
        int(values["readings"]),
        int(values["unused_readings"]),
        bool(values["uneven"]),
        bool(values["plain"]),
        int(values["elements"]),
    )


def _site(values: Mapping[str, Any]) -> Site:
    return Site(str(values["file"]), int(values["line"]), str(values["function"]))
