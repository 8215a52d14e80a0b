"""Trains through process groups that are written in Python, as torchft's are.

``Wrapping`` passes calls on to a group of torch's; ``Deeper`` overrides one of its
methods again and calls the other's; ``Super`` lets torch's own class do the work.
"""

# ruff: noqa: SLF001, N802, ARG002 (the interface is that of torch)
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

RANK = int(os.environ["RANK"])
OUT = Path(sys.argv[1])


class Done(dist._Work):
    def wait(self, timeout=None):
        return True


class Wrapping(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.inner = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.seen = []

    def getBackendName(self):
        return "wrapping"

    @property
    def group_name(self):
        return dist.distributed_c10d._world.pg_names[self]

    def allreduce(self, tensors, opts=None):
        self.seen.append("allreduce")
        return self.inner.allreduce(tensors, opts or dist.AllreduceOptions())

    def broadcast(self, tensors, opts):
        self.seen.append("broadcast")
        return self.inner.broadcast(tensors, opts)

    def barrier(self, opts=None):
        self.seen.append("barrier")
        self.inner.barrier().wait()
        return Done()

    def send(self, tensors, rank, tag):
        self.seen.append("send")
        return self.inner.send(tensors, rank, tag)

    def recv(self, tensors, rank, tag):
        self.seen.append("recv")
        return self.inner.recv(tensors, rank, tag)


class Deeper(Wrapping):
    def allreduce(self, tensors, opts=None):
        return super().allreduce(tensors, opts)


class Super(dist.ProcessGroup):
    def allreduce(self, tensors, opts=None):
        return super().allreduce(tensors, opts or dist.AllreduceOptions())


def main():
    for kind in (Wrapping, Deeper):
        dist.Backend.register_backend(kind.__name__.lower(), kind, devices=["cpu"])
    url = f"file://{OUT}/store"
    dist.init_process_group("wrapping", init_method=url, rank=RANK, world_size=2)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)  # here
    dist.broadcast(tensor, src=0)
    dist.barrier()
    dist.send(tensor, 1) if RANK == 0 else dist.recv(tensor, 0)
    total = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 0
    seen = [dist.group.WORLD.seen]
    deeper = dist.new_group(backend="deeper")
    dist.all_reduce(tensor, group=deeper)
    dist.all_reduce(tensor, group=deeper)
    seen.append(deeper.seen)
    refused = ""
    try:
        Super(RANK, 2).allreduce([tensor])
    except RuntimeError as error:
        refused = str(error)
    # A stand-in for an inference engine that calls NCCL itself.
    engine = "an_engine.device_communicators.pynccl"
    sys.modules[engine] = ModuleType(engine)
    result = {"tensor": tensor.tolist(), "total": total.tolist(), "seen": seen, "refused": refused}
    (OUT / f"rank{RANK}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


main()
