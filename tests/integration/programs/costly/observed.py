"""Trains in many ways as one rank and then as the other, and prints what is told of each way.

One process that plays both ranks of a job in turns: what they do at the same time does
not matter here, only what the agent sees of each. Prints JSON: way to costs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from hangwatch.agent.call_site import known_prefixes
from hangwatch.agent.habits import SUFFIX, Practice
from hangwatch.efficiency.habits import Facts, RankFacts, find_costs, parse_facts
from hangwatch.model.calls import GroupKey
from hangwatch.model.kinds import Phase
from hangwatch.model.page import Identity, PageGroup, RankPage

WORLD = (0, 1)
SAMPLES, BATCH = 480, 4
WIDTH = 8
LOOK_EVERY = 10

Batches = Any
Way = Callable[["Rank"], None]
WAYS: dict[str, Way] = {}
ALONE: set[str] = set()
"""Ways in which one rank does what the other does, and one is enough to see it."""


def way(function: Way) -> Way:
    WAYS[function.__name__] = function
    return function


def alone(function: Way) -> Way:
    ALONE.add(function.__name__)
    return way(function)


class Branched(torch.nn.Module):
    """A model of two halves, of which ``skip`` leaves one out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH))
        self.second = torch.nn.Linear(WIDTH, 1)
        self.other = torch.nn.Linear(WIDTH, 1)

    def forward(self, inputs: torch.Tensor, *, skip: bool = False) -> torch.Tensor:
        hidden = self.first(inputs)
        output: torch.Tensor = self.second(hidden)
        return output if skip else output + self.other(hidden)


@dataclass
class Rank:
    """One of the two, with what it needs to train."""

    number: int
    practice: Practice
    page: str
    data: TensorDataset
    steps: int = 0
    keep: list[Any] = field(default_factory=list)
    """What is to live until the facts have been taken."""

    def sampler(self, **options: Any) -> DistributedSampler[Any]:
        return DistributedSampler(self.data, num_replicas=2, rank=self.number, **options)

    def model(self, *, find_unused: bool = False) -> Any:
        model = DistributedDataParallel(
            Branched(), process_group=dist.new_group([0]), find_unused_parameters=find_unused
        )
        self.keep.append(model)
        return model

    def optimizer(
        self, model: Any, kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    ) -> torch.optim.Optimizer:
        optimizer = kind(model.parameters(), lr=1e-3)
        self.keep.append(optimizer)
        return optimizer

    def look(self) -> None:
        """As the sampler does, but after so many steps."""
        self.steps += 1
        if self.steps % LOOK_EVERY == 0:
            self.practice.look(self.page, busy=False)

    def step(self, model: Any, optimizer: Any, batch: Any, **options: Any) -> None:
        model(batch[0], **options).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        self.look()

    def train(self, loader: Any, epochs: int = 3, sampler: Any = None) -> None:
        model = self.model()
        optimizer = self.optimizer(model)
        for epoch in range(epochs):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for batch in loader:
                self.step(model, optimizer, batch)

    def accumulate(
        self,
        optimizer_kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        *,
        no_sync: bool = False,
        several: int = 4,
        micro_batches: int = 1100,
    ) -> None:
        model = self.model()
        optimizer = self.optimizer(model, optimizer_kind)
        for number in range(micro_batches):
            last = number % several == several - 1
            with model.no_sync() if no_sync and not last else contextlib.nullcontext():
                model(torch.randn(BATCH, WIDTH)).mean().backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            self.look()


@way
def healthy_shards(rank: Rank) -> None:
    sampler = rank.sampler()
    rank.train(DataLoader(rank.data, BATCH, sampler=sampler), sampler=sampler)


@way
def healthy_one_epoch(rank: Rank) -> None:
    rank.train(DataLoader(rank.data, BATCH, sampler=rank.sampler()), epochs=1)


@way
def healthy_order_without_shuffle(rank: Rank) -> None:
    rank.train(DataLoader(rank.data, BATCH, sampler=rank.sampler(shuffle=False)))


@way
def healthy_seed_for_each_epoch(rank: Rank) -> None:
    model = rank.model()
    optimizer = rank.optimizer(model)
    for epoch in range(3):
        for batch in DataLoader(rank.data, BATCH, sampler=rank.sampler(seed=epoch)):
            rank.step(model, optimizer, batch)


@way
def healthy_evaluations(rank: Rank) -> None:
    """One after each epoch, and one in the midst of it that leaves the model in training mode."""
    sampler = rank.sampler()
    evaluated = DataLoader(rank.data, BATCH, sampler=rank.sampler())
    between = DataLoader(rank.data, BATCH, sampler=rank.sampler(drop_last=True))
    model = rank.model()
    optimizer = rank.optimizer(model)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(DataLoader(rank.data, BATCH, sampler=sampler)):
            rank.step(model, optimizer, batch)
            if number % 20 == 10:
                for inputs, _ in between:
                    with torch.no_grad():
                        model(inputs)
        model.eval()
        for inputs, _ in evaluated:
            with torch.no_grad():
                model(inputs)
        model.train()


class Reordered(TensorDataset):
    """Has an order of its own, which it is told the epoch for."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@way
def healthy_order_of_the_data_set(rank: Rank) -> None:
    data = Reordered(*rank.data.tensors)
    rank.train(
        DataLoader(data, BATCH, sampler=DistributedSampler(data, num_replicas=2, rank=rank.number))
    )


class Stream(IterableDataset[Any]):
    """Gives each rank its own samples."""

    def __init__(self, rank: Rank) -> None:
        self.samples = rank.data.tensors[0][rank.number :: 2]

    def __iter__(self) -> Iterator[Any]:
        return ((sample, 0) for sample in self.samples)


@way
def healthy_stream(rank: Rank) -> None:
    rank.train(DataLoader(Stream(rank), BATCH))


@way
def healthy_part_of_the_data(rank: Rank) -> None:
    own = TensorDataset(*(tensor[rank.number :: 2] for tensor in rank.data.tensors))
    rank.train(DataLoader(own, BATCH))


class Shards(BatchSampler):
    """Every other batch, as Accelerate's."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(range(SAMPLES), BATCH, drop_last=False)
        self.rank = rank.number

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(super().__iter__()):
            if number % 2 == self.rank:
                yield batch


@way
def healthy_batch_sampler(rank: Rank) -> None:
    rank.train(DataLoader(rank.data, batch_sampler=Shards(rank)))


class Resumable(DataLoader[Any]):
    """Goes on where it was, as StatefulDataLoader; its iterator is a generator."""

    def __iter__(self) -> Any:
        self.given = 0
        for batch in super().__iter__():
            self.given += 1
            yield batch


@way
def healthy_resumable(rank: Rank) -> None:
    sampler = rank.sampler()
    rank.train(Resumable(rank.data, BATCH, sampler=sampler), sampler=sampler)


@way
def healthy_whole_batches_split_by_hand(rank: Rank) -> None:
    model = rank.model()
    optimizer = rank.optimizer(model)
    for inputs, _ in DataLoader(rank.data, 2 * BATCH):
        rank.step(model, optimizer, (inputs[rank.number :: 2],))


class Constant(Dataset[torch.Tensor]):
    """Every sample is the same one, to look at nothing but the speed."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(WIDTH)


@way
def healthy_constant_data(rank: Rank) -> None:
    model = rank.model()
    optimizer = rank.optimizer(model)
    for batch in DataLoader(Constant(), BATCH):
        rank.step(model, optimizer, (batch,))


@way
def healthy_same_batch_on_purpose(rank: Rank) -> None:
    """A comparison of both ranks' gradients takes a few steps, not an epoch."""
    model = rank.model()
    optimizer = rank.optimizer(model)
    for number, batch in enumerate(DataLoader(rank.data, BATCH)):
        rank.step(model, optimizer, batch)
        if number == 4:
            break


@way
def healthy_random_samples(rank: Rank) -> None:
    torch.manual_seed(rank.number)
    rank.train(DataLoader(rank.data, BATCH, shuffle=True))


@alone
def healthy_accumulation(rank: Rank) -> None:
    rank.accumulate(no_sync=True)


@alone
def healthy_step_for_each_batch(rank: Rank) -> None:
    rank.accumulate(torch.optim.AdamW, several=1)


@alone
def healthy_two_passes_forward(rank: Rank) -> None:
    model = rank.model()
    optimizer = rank.optimizer(model)
    for _ in range(700):
        both = model(torch.randn(BATCH, WIDTH)) + model(torch.randn(BATCH, WIDTH))
        both.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        rank.look()


class OldStyle(torch.optim.Optimizer):
    """Changes the data of parameters, which shows nowhere."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=group["lr"])


@alone
def healthy_own_optimizer(rank: Rank) -> None:
    rank.accumulate(OldStyle, several=1)


@alone
def healthy_fused_optimizer(rank: Rank) -> None:
    rank.accumulate(lambda *a, **k: torch.optim.SGD(*a, **k, fused=True), several=1)


def _search(rank: Rank, skips: Callable[[int], bool]) -> None:
    model = rank.model(find_unused=True)
    optimizer = rank.optimizer(model)
    for number in range(2200):
        rank.step(model, optimizer, (torch.randn(2, WIDTH),), skip=skips(number))


@alone
def healthy_parameters_that_are_unused(rank: Rank) -> None:
    _search(rank, lambda _: True)


@alone
def healthy_parameters_that_are_seldom_unused(rank: Rank) -> None:
    _search(rank, lambda number: number % 97 == 50)


@way
def same_order(rank: Rank) -> None:
    rank.train(DataLoader(rank.data, BATCH, sampler=rank.sampler()), epochs=2)


@way
def same_order_of_lasting_workers(rank: Rank) -> None:
    loader = DataLoader(
        rank.data, BATCH, sampler=rank.sampler(), num_workers=1, persistent_workers=True
    )
    rank.train(loader)


@way
def same_order_with_a_loader_for_each_epoch(rank: Rank) -> None:
    sampler, model = rank.sampler(), rank.model()
    optimizer = rank.optimizer(model, torch.optim.AdamW)
    for _ in range(3):
        for batch in DataLoader(rank.data, BATCH, sampler=sampler):
            rank.step(model, optimizer, batch)


@alone
def sync_each_batch(rank: Rank) -> None:
    rank.accumulate()


@alone
def sync_each_batch_of_adam(rank: Rank) -> None:
    rank.accumulate(torch.optim.AdamW, several=8)


@alone
def unused_search(rank: Rank) -> None:
    _search(rank, lambda _: False)


def seen(name: str, number: int, directory: Path) -> RankFacts:
    """What the watchdog would have of a rank that trained in that way."""
    torch.manual_seed(number)
    known = SimpleNamespace(ranks=WORLD, slot=0)
    practice = Practice(
        SimpleNamespace(find=lambda _group: known),  # type: ignore[arg-type]
        known_prefixes(),
    )
    practice.attach()
    page = str(directory / f"{name}-{number}.page")
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, WIDTH, generator=generator), torch.zeros(SAMPLES))
    rank = Rank(number, practice, page, data)
    WAYS[name](rank)
    gc.collect()  # torch's loaders are cycles, and their end is that of their workers
    practice.look(page, busy=False)
    practice.finish(page)
    if practice.guard.swallowed:
        raise RuntimeError(f"{name}: {practice.guard.last}")
    file = Path(page + SUFFIX)
    facts = parse_facts(file.read_bytes()) if file.exists() else Facts((), ())
    return RankFacts(number, rank_page(number), facts)


def rank_page(number: int) -> RankPage:
    now_ns = time.monotonic_ns()
    return RankPage(
        Identity(1, 1, number, len(WORLD)),
        "native",
        "",
        Phase.RUNNING,
        now_ns,
        now_ns,
        now_ns,
        now_ns,
        "",
        0,
        "",
        0,
        None,
        None,
        0,
        "",
        (PageGroup(0, "0", GroupKey(WORLD, "default_pg")),),
    )


def main(names: list[str]) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    told: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in names or WAYS:
            numbers = WORLD[:1] if name in ALONE else WORLD
            ranks = [seen(name, number, Path(directory)) for number in numbers]
            told[name] = [finding.cost.value for finding in find_costs(ranks)]
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
