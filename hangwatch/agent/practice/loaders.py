"""Watches how a rank's data loaders are used: the order of their data, and the data itself.

A loader is looked at when a loop over it begins, which happens once an epoch; of the
first batches that it trains on a digest is made, and then nothing more is in the way.
"""

from __future__ import annotations

import sys
import weakref
from inspect import getattr_static
from operator import length_hint
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from hangwatch.agent.call_site import user_site
from hangwatch.agent.practice.batches import digest, largest_tensor
from hangwatch.agent.practice.replicas import Progress
from hangwatch.safety.foreign import Ignoring

if TYPE_CHECKING:
    from hangwatch.agent.call_site import CallSite, Prefixes
    from hangwatch.agent.guard import Guard
    from hangwatch.agent.practice.replicas import Replicas

MAX_LOADERS = 64
MAX_ORDERS = 16
DIGESTS = 8
"""Batches of a loader that are compared with those of other ranks."""
_LEAST_STEPS = 2
"""A loop that has changed the parameters so often has trained."""
_ITERATED: tuple[Any, ...] = ([], (), "", range(0), range(1 << 70), set(), {})
_ITERATORS = frozenset(type(iter(over)) for over in _ITERATED)
"""Iterators that know their length; that of a class with __getitem__ would ask the class."""


class Loader:
    """A data loader, or a distributed sampler that several loaders may share."""

    def __init__(self, key: Any, site: CallSite, *, distributed: bool) -> None:
        self.key = weakref.ref(key)
        self.site = site
        self.distributed = distributed
        """True if a DistributedSampler that shuffles decides the order, and nothing else."""
        self.epochs = 0
        """Loops over it in which the model was trained."""
        self.orders: set[int] = set()
        """Seeds of the order of these loops: the sampler's seed plus its epoch."""
        self.calls = 0
        """Collectives in them."""
        self.digests: list[str] = []
        """Digests of the first batches of training; empty for a batch that cannot be read."""
        self.elements = 0
        """Number of elements of the largest tensor of the first batch."""
        self.watched = False


class _Loop(NamedTuple):
    loader: Loader
    order: int
    length: int
    began: Progress


class Loaders:
    """The loaders of this process. begin() is called by the thread that loops."""

    def __init__(self, replicas: Replicas, guard: Guard, prefixes: Prefixes) -> None:
        self._replicas = replicas
        self._guard = guard
        self._prefixes = prefixes
        self._known: dict[int, Loader] = {}
        self._loop: _Loop | None = None
        self._outer: weakref.ref[Any] | None = None
        """The iterator that the training goes through."""
        self._last = Progress(-1, -1)

    def begin(self, loader: Any, iterator: Any) -> None:
        """Take note that a loop over a DataLoader begins, in the caller of our caller."""
        if self._is_nested(iterator):
            return
        now = self._replicas.progress()
        self._end(now)
        torch: Any = sys.modules["torch"]
        if not torch.is_grad_enabled() or not self._replicas.in_training():
            return  # an evaluation: its order and its share do not matter
        known = self._find(loader)
        if known is None:
            return
        self._loop = _Loop(known, _order(loader), _length(loader), now)
        self._outer = weakref.ref(iterator)
        if not known.watched:
            known.watched = True
            self._watch(known, iterator)

    def look(self) -> None:
        """Remember how far the training is, for when nobody can be asked any more."""
        self._last = self._replicas.progress()

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts of each loader that was trained with, the running loop included."""
        facts = []
        for loader in list(self._known.values()):
            epochs, orders, calls = loader.epochs, set(loader.orders), loader.calls
            loop = self._loop
            if loop is not None and loop.loader is loader and _trained(loop, self._last):
                epochs += 1
                orders.add(loop.order)
                calls += max(0, self._last.calls - loop.began.calls)
            if epochs:
                file, line, function = loader.site
                facts.append(
                    {
                        "file": file,
                        "line": line,
                        "function": function,
                        "distributed": loader.distributed,
                        "epochs": epochs,
                        "orders": len(orders),
                        "calls": calls,
                        "digests": loader.digests[:],
                        "elements": loader.elements,
                    }
                )
        return facts

    def _is_nested(self, iterator: Any) -> bool:
        """Return True if a loop over another loader is under way: an evaluation in between."""
        outer = self._outer() if self._outer is not None else None
        if outer is None or outer is iterator:
            return False
        begun = _own(outer, "_num_yielded", 1) > 0
        return begun and not _is_exhausted(_own(outer, "_sampler_iter"))

    def _end(self, now: Progress) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and _trained(loop, now):
            loop.loader.epochs += 1
            loop.loader.calls += max(0, now.calls - loop.began.calls)
            if len(loop.loader.orders) < MAX_ORDERS:
                loop.loader.orders.add(loop.order)

    def _find(self, loader: Any) -> Loader | None:
        distributed = _is_distributed(loader)
        key = _own(loader, "sampler") if distributed else loader
        known = self._known.get(id(key))
        if known is not None and known.key() is key:
            return known
        if len(self._known) >= MAX_LOADERS:
            return None
        site = user_site(sys._getframe(), self._prefixes)
        self._known[id(key)] = known = Loader(key, site, distributed=distributed)
        return known

    def _watch(self, known: Loader, iterator: Any) -> None:
        """Have digests made of the next batches; the wrapper then takes itself away.

        It must not keep the iterator alive, whose end is the end of its workers. One that the
        program has put in its place, or around it, stays.
        """
        alive, guard = weakref.ref(iterator), self._guard

        def next_data() -> Any:
            own: Any = alive()
            batch = type(own)._next_data(own)
            with guard:
                if len(known.digests) < DIGESTS:
                    known.elements = known.elements or largest_tensor(batch)
                    known.digests.append(digest(batch))
                done = len(known.digests) >= DIGESTS
                if done and vars(own).get("_next_data") is next_data:
                    del vars(own)["_next_data"]
            return batch

        if "_next_data" not in vars(iterator):
            iterator._next_data = next_data


def _trained(loop: _Loop, now: Progress) -> bool:
    """Return True if the model was trained in a loop that has come as far as ``now``.

    Fused optimizers do not count as changes in place; then there must have been a
    collective for every other batch, which an evaluation has no reason for.
    """
    if now.version - loop.began.version >= _LEAST_STEPS and loop.began.version >= 0:
        return True
    calls = now.calls - loop.began.calls
    return loop.began.calls >= 0 and calls >= max(_LEAST_STEPS, loop.length / 2)


def _is_distributed(loader: Any) -> bool:
    """Return True if torch's own DistributedSampler decides the order, and it shuffles.

    What another sampler, a batch sampler or a data set makes of the order is not known.
    """
    data: Any = sys.modules["torch.utils.data"]
    sampler, batches = _own(loader, "sampler"), _own(loader, "batch_sampler")
    kind = data.distributed.DistributedSampler
    return (
        kind in type(sampler).__mro__
        and type(sampler).__iter__ is kind.__iter__
        and _own(sampler, "shuffle") is True
        and (batches is None or (type(batches) is data.BatchSampler and batches.sampler is sampler))
        and getattr_static(_own(loader, "dataset"), "set_epoch", None) is None
        and _own(sampler, "num_samples", 0) > 1
    )


def _order(loader: Any) -> int:
    if not _is_distributed(loader):
        return 0
    sampler = _own(loader, "sampler")
    return int(_own(sampler, "seed", 0)) + int(_own(sampler, "epoch", 0))


def _length(loader: Any) -> int:
    """Return the number of batches of a loop over a loader, as far as torch has it written down.

    Nobody's ``__len__`` is called: it may count, draw or wait, and torch does not call it here.
    """
    data: Any = sys.modules["torch.utils.data"]
    sampler, batches = _own(loader, "sampler"), _own(loader, "batch_sampler")
    if type(sampler) is data.distributed.DistributedSampler:
        if batches is None:
            return int(sampler.num_samples)
        if type(batches) is data.BatchSampler:
            full, rest = divmod(int(sampler.num_samples), int(batches.batch_size))
            return full + bool(rest and not batches.drop_last)
    return sys.maxsize  # it counts as training only by what it changes


def _is_exhausted(order: Any) -> bool:
    """Return True if an iterator of Python's own has nothing left; others are not asked."""
    if type(order) is GeneratorType:
        return order.gi_frame is None
    return type(order) in _ITERATORS and length_hint(order, 1) == 0


def _own(instance: Any, name: str, default: Any = None) -> Any:
    """Return an attribute that the object itself has, without asking a property of its class."""
    with Ignoring(AttributeError):  # it has none
        return object.__getattribute__(instance, "__dict__").get(name, default)
    return default
