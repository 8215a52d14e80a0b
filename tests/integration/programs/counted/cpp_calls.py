"""Lets C++ issue collectives by itself, and makes and destroys groups meanwhile.

Writes the Flight Recorder and the result of each part for the test to compare.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C import _distributed_c10d

warnings.simplefilter("ignore")
RANK = int(os.environ["RANK"])
OUT = Path(sys.argv[1])


def ddp():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    for _ in range(3):
        model(torch.ones(2, 64)).sum().backward()


def sharded():
    if torch.__version__ < "2.8":
        return  # it takes a device that has streams
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 (2.4 has it elsewhere)

    model = torch.nn.Linear(8, 8)
    fully_shard(model)
    model(torch.ones(2, 8)).sum().backward()


def functional_calls():
    total = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    return (total + 0).tolist()


def compiled():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(tensor):
        dist.all_reduce(tensor)
        gathered = torch.empty(4)
        dist.all_gather_into_tensor(gathered, tensor, group=dist.group.WORLD)
        return gathered * 2

    return step(torch.ones(2)).tolist()


def subgroups():
    """Two groups of the same members, used in another order on each rank."""
    pair = [dist.new_group([0, 1], group_desc="pair") for _ in range(2)]
    alone = dist.new_group([RANK], use_local_synchronization=True)
    for group in pair if RANK == 0 else reversed(pair):
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    work.wait()
    dist.all_reduce(torch.ones(1), group=alone)
    for _ in range(3):
        dist.broadcast(torch.ones(1), src=1, group=pair[1])
    dist.destroy_process_group(pair[0])


def flight():
    """What c10d has recorded; torch before 2.8 records nothing of gloo."""
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    return json.loads(dump(includeCollectives=True))["entries"] if dump else []


def settled():
    """Wait until c10d has nothing unfinished: what it completes, it marks a moment later.

    Torch before 2.8 does not tell; and it blocks for ever where a group is freed while a thread
    of gloo's still holds a tensor.
    """
    if not hasattr(_distributed_c10d, "_dump_fr_trace_json"):
        time.sleep(1)
    deadline = time.monotonic() + 30
    while not all(entry["retired"] for entry in flight()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def init(number):
    # torchrun's own store still holds the addresses of the groups before.
    url = f"file://{OUT}/store{number}"
    dist.init_process_group("gloo", init_method=url, rank=RANK, world_size=2)


init(0)
results = {}
for part in (ddp, functional_calls, sharded, compiled, subgroups):
    results[part.__name__] = part()
settled()
dist.barrier()
dist.destroy_process_group()
init(1)
dist.new_group([0, 1], group_desc="pair")
functional_calls()
settled()
dist.barrier()
settled()
(OUT / f"rank{RANK}.json").write_text(json.dumps({"results": results, "flight": flight()}))
dist.destroy_process_group()
