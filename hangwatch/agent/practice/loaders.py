"""Counts the epochs of training over a rank's distributed samplers, and the orders of their data.

A loader is looked at when a loop over it begins, which happens once an epoch.
"""

from __future__ import annotations

import sys
import weakref
from inspect import getattr_static
from operator import length_hint
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from hangwatch.agent.call_site import user_site
from hangwatch.agent.practice.replicas import Progress, site_facts
from hangwatch.safety.foreign import Ignoring

if TYPE_CHECKING:
    from hangwatch.agent.call_site import CallSite, Prefixes
    from hangwatch.agent.practice.replicas import Replicas

MAX_SAMPLERS = 64
MAX_ORDERS = 16
_LEAST_STEPS = 2
"""A loop that has changed the parameters so often has trained."""
_ITERATED: tuple[Any, ...] = ([], (), "", range(0), range(1 << 70), set(), {})
_ITERATORS = frozenset(type(iter(over)) for over in _ITERATED)
"""Iterators that know their length; that of a class with __getitem__ would ask the class."""


class Sampler:
    """A DistributedSampler that shuffles, which several loaders may share."""

    def __init__(self, key: Any, site: CallSite) -> None:
        self.key = weakref.ref(key)
        self.site = site
        """The loop over the first of its loaders."""
        self.epochs = 0
        """Loops over it in which the model was trained."""
        self.orders: set[int] = set()
        """Seeds of the order of these loops: the sampler's seed plus its epoch."""


class _Loop(NamedTuple):
    sampler: Sampler
    order: int
    length: int
    began: Progress


class Loaders:
    """The data loaders of this process. begin() is called by the thread that loops."""

    def __init__(self, replicas: Replicas, prefixes: Prefixes) -> None:
        self._replicas = replicas
        self._prefixes = prefixes
        self._known: dict[int, Sampler] = {}
        self._loop: _Loop | None = None
        self._outer: weakref.ref[Any] | None = None
        """The iterator that the training goes through."""
        self._last = Progress(-1, -1)

    def begin(self, loader: Any, iterator: Any) -> None:
        """Note that a loop over a DataLoader begins, in the caller of our caller."""
        if self._is_nested(iterator):
            return
        now = self._replicas.progress()
        self._end(now)
        torch: Any = sys.modules["torch"]
        if not torch.is_grad_enabled() or not self._replicas.in_training():
            return  # the order of an evaluation does not matter
        self._outer = weakref.ref(iterator)
        known = self._find(loader)
        if known is not None:
            self._loop = _Loop(known, _order(loader), _length(loader), now)

    def look(self) -> None:
        """Remember how far the training is, for when it can no longer be asked."""
        self._last = self._replicas.progress()

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts of each sampler that was trained with, the running loop included."""
        facts = []
        for sampler in list(self._known.values()):
            epochs, orders = sampler.epochs, set(sampler.orders)
            loop = self._loop
            if loop is not None and loop.sampler is sampler and _trained(loop, self._last):
                epochs += 1
                orders.add(loop.order)
            if epochs:
                site = site_facts(sampler.site)
                facts.append({"site": site, "epochs": epochs, "orders": len(orders)})
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
            loop.sampler.epochs += 1
            if len(loop.sampler.orders) < MAX_ORDERS:
                loop.sampler.orders.add(loop.order)

    def _find(self, loader: Any) -> Sampler | None:
        if not _is_distributed(loader):
            return None
        key = _own(loader, "sampler")
        known = self._known.get(id(key))
        if known is not None and known.key() is key:
            return known
        if len(self._known) >= MAX_SAMPLERS:
            return None
        self._known[id(key)] = known = Sampler(key, user_site(sys._getframe(), self._prefixes))
        return known


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
    """Return the seed of the order: the sampler's own seed plus its epoch."""
    sampler = _own(loader, "sampler")
    return int(_own(sampler, "seed", 0)) + int(_own(sampler, "epoch", 0))


def _length(loader: Any) -> int:
    """Return the number of batches of a loop over a loader with a distributed sampler.

    No ``__len__`` is called: it may count, draw or wait, and torch does not call it here.
    """
    samples, batches = int(_own(loader, "sampler").num_samples), _own(loader, "batch_sampler")
    if batches is None:
        return samples
    full, rest = divmod(samples, int(batches.batch_size))
    return full + bool(rest and not batches.drop_last)


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
