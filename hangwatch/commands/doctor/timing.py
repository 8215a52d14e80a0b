"""How long a barrier and an all_reduce take, and what goes between neighbouring nodes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

TIMES = 20
LARGE_TIMES = 3
SMALL_BYTES = 4
SIZES_BYTES = (1 << 20, 16 << 20, 256 << 20)
MOST_S = 1.0
"""A larger size is tried where the one before took less for each call."""
CPU_BYTES = 16 << 20
_FLOAT = 4


def world(device: Any) -> dict[str, Any]:
    """Barrier and all_reduce among all ranks, in seconds and bytes a second.

    The bandwidth is that of the bus, as nccl-tests defines it: 2 (n - 1) / n times the
    bytes, by the time. Every rank returns the same, the slowest rank's.
    """
    size = dist.get_world_size()
    barrier_s = _agreed(_median(_barrier(device), TIMES), device)
    small = torch.ones(1, device=device)
    latency_s = _agreed(_median(lambda: _all_reduce(small, device), TIMES), device)
    reduces = [{"bytes": SMALL_BYTES, "seconds": latency_s}]
    for count in SIZES_BYTES:
        if device.type == "cpu" and count > CPU_BYTES:
            break
        tensor = torch.ones(count // _FLOAT, device=device)
        _all_reduce(tensor, device)
        seconds = _agreed(_median(lambda one=tensor: _all_reduce(one, device), LARGE_TIMES), device)  # type: ignore[misc]
        bandwidth = 2 * (size - 1) / size * count / seconds
        reduces.append({"bytes": count, "seconds": seconds, "bus_bytes_per_s": bandwidth})
        if seconds > MOST_S / 4:
            break
    return {"barrier_s": barrier_s, "all_reduce": reduces}


def neighbours(leaders: Sequence[int], rank: int, device: Any) -> list[dict[str, Any]]:
    """Send to and fro between the first ranks of neighbouring nodes, as the lower rank saw it.

    In rounds, so that no node talks with two at a time.
    """
    found = []
    for round_of_pairs in rounds(leaders):
        for low, high in round_of_pairs:
            if rank in (low, high):
                times = _to_and_fro(high if rank == low else low, device, first=rank == low)
                if rank == low:
                    found.append({"ranks": [low, high], **times})
        dist.barrier()
    return found


def rounds(leaders: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The pairs of neighbours in a ring of nodes, such that no node is in a round twice."""
    count = len(leaders)
    if count < 2:  # noqa: PLR2004 (nobody to talk with)
        return []
    pairs = [(leaders[at], leaders[at + 1]) for at in range(count - 1)]
    found = [pairs[0::2], pairs[1::2]]
    if count > 2:  # noqa: PLR2004 (two nodes are neighbours once)
        found.append([(leaders[0], leaders[-1])])
    return [pairs for pairs in found if pairs]


def _to_and_fro(peer: int, device: Any, *, first: bool) -> dict[str, float]:
    small = torch.ones(1, device=device)
    large = torch.ones(SIZES_BYTES[0] // _FLOAT, device=device)

    def exchange(tensor: Any) -> None:
        for sends in (first, not first):
            if sends:
                dist.send(tensor, peer)
            else:
                dist.recv(tensor, peer)
        _finish(device)

    exchange(small)
    round_trip_s = _median(lambda: exchange(small), TIMES)
    exchange(large)
    seconds = _median(lambda: exchange(large), LARGE_TIMES)
    return {"round_trip_s": round_trip_s, "bytes_per_s": 2 * SIZES_BYTES[0] / seconds}


def _barrier(device: Any) -> Callable[[], None]:
    def barrier() -> None:
        dist.barrier()
        _finish(device)

    barrier()
    return barrier


def _all_reduce(tensor: Any, device: Any) -> None:
    dist.all_reduce(tensor)
    _finish(device)


def _finish(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _agreed(seconds: float, device: Any) -> float:
    """The slowest rank's."""
    tensor = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor.item())


def _median(step: Callable[[], None], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
