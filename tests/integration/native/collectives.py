"""Issue every kind of collective, and compare the page with the Flight Recorder.

Started by test_native_torch.py, alone or by torchrun. Raises if anything differs.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import sysconfig
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from hangwatch import _native
from hangwatch.evidence.flight.recorder import wire_name
from hangwatch.evidence.pages.reader import parse_page
from hangwatch.model.kinds import OpState

if TYPE_CHECKING:
    from hangwatch.model.page import PageEvent, RankPage

AS_GLOO_HAS_IT = {
    "all_gather_into_tensor": "all_gather",
    "all_to_all_single": "all_to_all",
    "reduce_scatter": "all_reduce",
    "reduce_scatter_tensor": "all_reduce",
}
SLOTS: dict[int, int] = {}
PAGE = Path(tempfile.mkdtemp()) / "rank.page"


def resolve(group: Any) -> int:
    """Give the group the next slot, once."""
    if (known := SLOTS.get(id(group))) is not None:
        return known
    slot = SLOTS[id(group)] = len(SLOTS)
    ranks = dist.get_process_group_ranks(group)
    backend = dist.get_backend_config(group)
    _native.define_group(slot, group.group_name, group.group_desc, ranks, 0, backend)
    return slot


def page() -> RankPage:
    """Read the page of this process."""
    return parse_page(PAGE.read_bytes())


def every_collective(rank: int, world: int) -> None:
    """Issue each of them once, and some in several ways."""
    tensor, many = torch.ones(2, 3), torch.ones(2 * world, 3)
    parts = [torch.ones(2, 3) for _ in range(world)]
    dist.all_reduce(tensor)
    dist.broadcast(tensor, world - 1)
    dist.reduce(tensor, 0)
    dist.all_gather(parts, tensor)
    dist.all_gather_into_tensor(many, tensor)
    dist.gather(tensor, parts if rank == 0 else None, 0)
    dist.scatter(tensor, parts if rank == 0 else None, 0)
    dist.reduce_scatter(tensor, parts)
    dist.reduce_scatter_tensor(tensor, many)
    dist.all_to_all_single(many.clone(), many)
    dist.barrier()
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    dist.broadcast_object_list([{"rank": rank}], 0)
    dist.monitored_barrier(timeout=dt.timedelta(seconds=60))
    dist.all_reduce(torch.ones(4, dtype=torch.bfloat16))
    dist.all_reduce(torch.tensor([True]).sum().bool(), op=dist.ReduceOp.MAX)
    work = dist.all_reduce(torch.ones(7), async_op=True)
    work.wait()
    functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).sum()
    dist.all_reduce(torch.ones(1))


def sends(rank: int, world: int) -> None:
    """Go round the ring, the last rank without a word to the first."""
    tensor = torch.ones(3)
    if rank + 1 < world:
        dist.send(tensor, rank + 1, tag=4)
        dist.isend(tensor, rank + 1).wait()
    if rank > 0:
        dist.recv(tensor, rank - 1, tag=4)
        dist.recv(tensor)
    neighbours = [
        dist.P2POp(dist.isend, tensor, (rank + 1) % world),
        dist.P2POp(dist.irecv, tensor.clone(), (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(neighbours):
        work.wait()
    dist.all_reduce(tensor)


def a_ddp_step() -> None:
    """All of its collectives are issued by C++."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(torch.ones(1))


def threads() -> None:
    """Let two threads issue at once."""

    def issue() -> None:
        for _ in range(30):
            dist.all_reduce(torch.ones(1))

    others = [threading.Thread(target=issue) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    dist.all_reduce(torch.ones(1))


def compare(group: Any) -> list[PageEvent]:
    """Check what was recorded against what c10d recorded. Returns the events."""
    slot = SLOTS[id(group)]
    recorded = page()
    flight = json.loads(c10d._dump_fr_trace_json(includeCollectives=True))  # type: ignore[attr-defined]  # noqa: SLF001
    entries = [e for e in flight["entries"] if e["process_group"][0] == group.group_name]
    places = {entry["collective_seq_id"]: entry for entry in entries}
    # Of two threads that issue at once c10d may give both calls one number, and skip one.
    skipped = len(entries) - len(places)
    events = [event for event in recorded.events if event.slot == slot]
    last = max(places)
    for event in events:
        assert event.state is OpState.DONE, event
        assert event.site is not None, event
        assert event.site.file == __file__, event
        if event.p2p or event.wire == "monitored_barrier":
            continue
        if event.seq not in places:
            skipped -= 1
            last = max(last, event.seq)
            continue
        entry = places[event.seq]
        name = wire_name(entry["profiling_name"])[0]
        if name not in {event.wire, AS_GLOO_HAS_IT.get(event.wire)}:
            raise AssertionError(f"{event} is not {entry}")
        if event.wire in {"all_reduce", "broadcast", "all_gather", "all_to_all_single"}:
            assert list(event.shape) == entry["input_sizes"][0], (event, entry)
    assert skipped == 0, entries
    (told,) = [each for each in recorded.groups if each.slot == slot]
    assert told.enqueued == last, (told, last)
    assert told.entered == told.left == sum(not event.p2p for event in events), told
    assert _native.sample_number(slot, group, 0) == last
    assert recorded.swallowed == 0, recorded.disarmed
    return events


def main() -> None:
    """Run all of it."""
    warnings.simplefilter("ignore")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    _native.open_page(str(PAGE), {"pid": os.getpid(), "rank": rank, "world_size": world})
    library = [sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib", "platlib")]
    _native.set_prefixes(library, [])
    _native.wrap_methods(c10d.ProcessGroup, c10d.Work, resolve)
    _native.start_heartbeat(50)
    if world > 1:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    every_collective(rank, world)
    events = compare(dist.group.WORLD)
    told = {event.op for event in events}
    assert {"all_gather_object", "broadcast_object_list", "all_gather_into_tensor"} <= told, told
    by_shape = {event.shape: event for event in events if event.op == "all_reduce"}
    assert by_shape[4,].dtype == "bfloat16"
    assert by_shape[()].dtype == "bool"
    assert by_shape[7,].is_async
    assert not by_shape[4,].is_async
    roots = {event.op: event.root for event in events}
    assert (roots["broadcast"], roots["reduce"], roots["scatter"]) == (world - 1, 0, 0)

    if world > 1:
        sends(rank, world)
        peers = {(e.op, e.peer, e.tag) for e in compare(dist.group.WORLD) if e.p2p}
        if rank == 1:
            assert {("recv", 0, 4), ("recv", -1, 0), ("send", 2, 4)} <= peers, peers
    a_ddp_step()
    compare(dist.group.WORLD)
    some = dist.new_group(list(range(0, world, 2)), group_desc="even")
    if rank % 2 == 0:
        dist.broadcast(torch.ones(9), src=0, group=some)
        (event,) = compare(some)
        assert event.seq == 1
    if world == 1:
        threads()
        last = page().events[-1]
        places = [event.seq for event in page().events if event.slot == last.slot]
        assert len(set(places)) == len(places)
        compare(dist.group.WORLD)
    _native.stop_heartbeat()
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} is good\n")


if __name__ == "__main__":
    main()
