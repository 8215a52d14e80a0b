"""Compiles, pickles and copies what the agent observes: all is as without it."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import pickle
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hangwatch.agent.call_site import known_prefixes
from hangwatch.agent.habits import Practice

DATA = TensorDataset(torch.randn(64, 4), torch.zeros(64))


def compiled() -> tuple[list[tuple[str, int]], int]:
    """Frames that torch.compile compiles, and graphs that it breaks, of a whole training step."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    counters: Any = importlib.import_module("torch._dynamo.utils").counters
    dynamo.reset()
    counters.clear()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = torch.compile(model, backend="aot_eager")
    step = torch.compile(optimizer.step, backend="aot_eager")
    for inputs, _ in DataLoader(DATA, 8):
        whole(inputs).sum().backward()
        step()
    return sorted(counters["frames"].items()), len(counters["graph_break"])


def check_copies() -> None:
    """Pickle, copy and ask for signatures."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.randn(2, 4)).sum().backward()
    sampler: DistributedSampler[Any] = DistributedSampler(DATA)
    loader = DataLoader(DATA, 8, sampler=sampler)
    batches = iter(loader)
    next(batches)
    for one in (model, sampler, loader, torch.optim.SGD(model.parameters(), lr=0.1)):
        copied = pickle.loads(pickle.dumps(one))  # noqa: S301 (just pickled)
        assert type(copied) is type(one)
    torch.save(model, io.BytesIO())
    copy.deepcopy(loader)
    assert "module" in inspect.signature(DistributedDataParallel).parameters
    assert "_next_data" not in vars(batches)
    alive = weakref.ref(batches)
    del batches
    assert alive() is None, "an iterator that nobody has any more must end"


def what_they_take() -> list[object]:
    """What the classes say that they take, to those who ask without following wrappers."""
    whom: list[Any] = [DistributedDataParallel, torch.optim.Optimizer, torch.optim.SGD]
    return [ask(one) for one in whom for ask in (inspect.getfullargspec, inspect.signature)]


def check_spawned_workers() -> None:
    """Workers that are started anew get what they need by pickle."""
    sampler: DistributedSampler[Any] = DistributedSampler(DATA)
    loader = DataLoader(DATA, 8, sampler=sampler, num_workers=1, multiprocessing_context="spawn")
    assert sum(len(inputs) for inputs, _ in loader) == len(DATA)


def main() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    compiled()  # the first time torch compiles more, of its own
    before, taken = compiled(), what_they_take()
    known = SimpleNamespace(ranks=(0,), slot=0)
    groups: Any = SimpleNamespace(find=lambda _group: known)
    practice = Practice(groups, known_prefixes())
    practice.attach()
    practice.attach()
    after = compiled()
    assert after == before, (before, after)
    assert what_they_take() == taken
    check_copies()
    check_spawned_workers()
    assert practice.guard.swallowed == 0, practice.guard.last
    sys.stdout.write("good\n")


if __name__ == "__main__":
    main()
