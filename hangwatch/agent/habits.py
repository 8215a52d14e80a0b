"""Gathers facts on inefficient training habits of a rank, which hangwatch.efficiency.habits judges.

The constructors of DistributedDataParallel and of optimizers are followed, and the begin of a
loop over a DataLoader, which happens once an epoch; nothing that runs in a training step is. The
sampler reads what torch itself counts, and writes the facts next to the page now and then
(``<page>.practice``, JSON). The watchdog reads them when the job has ended, or at an incident.
"""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from functools import partial
from inspect import getattr_static
from itertools import islice
from operator import length_hint
from pathlib import Path
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from hangwatch.agent.call_site import user_site
from hangwatch.agent.guard import Guard
from hangwatch.agent.record.hidden_wrappers import follow, leave_alone
from hangwatch.safety import untrusted
from hangwatch.safety.foreign import Ignoring, is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from hangwatch.agent.call_site import CallSite, Prefixes
    from hangwatch.agent.record.groups import Groups

SUFFIX = ".practice"
WRITE_S = 5.0
MAX_REPLICAS = 16
MAX_OPTIMIZERS = 64
ENOUGH_READINGS = 40
SELDOM = 10
"""Looks for each reading, once there are enough readings."""
_PROBED = 8
"""Parameters of an optimizer that are asked how many steps it has made."""
_UNEVEN = 8
"""Changes in place by which parameters differ that have not had the same steps."""
_ONE_BROADCAST_BYTES = 128 << 20
"""Bytes of buffers that surely go into one broadcast; torch's own bound is 250 MiB."""
_REPLICATION = "/torch/nn/parallel/distributed.py"
_BACKWARD = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
MAX_SAMPLERS = 64
MAX_ORDERS = 16
_LEAST_STEPS = 2
"""A loop that has changed the parameters so often has trained."""
_ITERATED: tuple[Any, ...] = ([], (), "", range(0), range(1 << 70), set(), {})
_ITERATORS = frozenset(type(iter(over)) for over in _ITERATED)
"""Iterators that know their length; that of a class with __getitem__ would ask the class."""
_current: list[Practice] = []
"""The Practice of this process; a fork's child that becomes a rank puts its own here."""


class Progress(NamedTuple):
    """The progress of the training; -1 where it is not known."""

    version: int
    """Changes in place of the parameters."""
    calls: int
    """Collectives of the group that averages the gradients."""


class Replica:
    """A DistributedDataParallel module."""

    def __init__(self, module: Any, site: CallSite, slot: int) -> None:
        self.module = weakref.ref(module)
        self.site = site
        self.slot = slot
        self.parameters = [weakref.ref(p) for p in module.parameters() if p.requires_grad]
        self.identities = {id(p()) for p in self.parameters}
        self.broadcasts = _broadcasts(module)
        self.versions: list[int] | None = None
        """Versions of the parameters at the first reading."""
        self.uneven = False
        """True if some parameters have had fewer changes than others since."""
        self.facts: dict[str, Any] = {}
        self.readings = 0
        self.unused_readings = 0


class Replicas:
    """The modules and optimizers of this process. look() is called by the sampler alone."""

    def __init__(self, groups: Groups, prefixes: Prefixes) -> None:
        self._groups = groups
        self._prefixes = prefixes
        self._replicas: list[Replica] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._looks = 0

    def add_module(self, module: Any) -> None:
        """Take in a DistributedDataParallel that was made below our caller."""
        group = self._groups.find(module.process_group)
        if group is not None and len(self._replicas) < MAX_REPLICAS:
            site = user_site(sys._getframe(), self._prefixes)
            self._replicas.append(Replica(module, site, group.slot))

    def add_optimizer(self, optimizer: Any) -> None:
        """Take in an optimizer of any class."""
        if len(self._optimizers) < MAX_OPTIMIZERS:
            self._optimizers.append(weakref.ref(optimizer))

    def in_training(self) -> bool:
        """Return True if a model of the user's is in training mode, which frameworks switch."""
        modules = (replica.module() for replica in self._replicas)
        return any(module.module.training for module in modules if module is not None)

    def progress(self) -> Progress:
        """Return how far the training has come."""
        version = calls = -1
        for replica in self._replicas:
            module = replica.module()
            if module is None:
                continue
            some = (p() for p in replica.parameters[:_PROBED])
            version = max(version, *(p._version for p in some if p is not None), -1)
            calls = max(calls, _calls(module))
        return Progress(version, calls)

    def look(self) -> None:
        """Read what torch counts of each module, unless it is at work just now.

        The counts lie behind a lock of the reducer's that a backward pass holds while it waits,
        also for ever. So no thread may be in one, and we hold the GIL until we ask; of a pass that
        C++ was asked for no frame shows, but that collectives are unfinished.
        """
        self._looks += 1
        enough = all(replica.readings >= ENOUGH_READINGS for replica in self._replicas)
        if (enough and self._looks % SELDOM) or not self._replicas or at_work():
            return
        for replica in self._replicas:
            module = replica.module()
            if module is not None and module.logger is not None:
                self._read(replica, module)

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts of each module that was trained."""
        return [{**replica.facts} for replica in self._replicas if replica.facts]

    def _read(self, replica: Replica, module: Any) -> None:
        counts = module._get_ddp_logging_data()
        iteration = int(counts.get("iteration", 0))
        if iteration <= 0 or iteration == replica.facts.get("iteration"):
            return
        searches = bool(module.find_unused_parameters) and not module.static_graph
        if searches:
            self._compare_versions(replica)
        replica.readings += 1
        replica.unused_readings += bool(counts.get("unused_parameter_size", 0))
        replica.facts = {
            "site": site_facts(replica.site),
            "slot": replica.slot,
            "iteration": iteration,
            "calls": _calls(module),
            "steps": self._steps(replica),
            "buckets": int(counts.get("num_buckets_reduced", 0)),
            "broadcasts": replica.broadcasts,
            "hooked": bool(getattr(module, "_comm_hooks", ())),
            "find_unused": searches,
            "readings": replica.readings,
            "unused_readings": replica.unused_readings,
            "uneven": replica.uneven,
        }

    def _compare_versions(self, replica: Replica) -> None:
        parameters = [p() for p in replica.parameters]
        now = [-1 if p is None else p._version for p in parameters]
        if replica.versions is None:
            replica.versions = now
        changes = [b - a for a, b in zip(replica.versions, now, strict=True)]
        replica.uneven |= max(changes, default=0) - min(changes, default=0) > _UNEVEN

    def _steps(self, replica: Replica) -> int:
        """Return the most steps that were made with its parameters; -1 where that is not known."""
        steps = -1
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is None or not type(optimizer).__module__.startswith("torch.optim"):
                continue
            for group in optimizer.param_groups:
                ours = (p for p in group["params"] if id(p) in replica.identities)
                for parameter in islice(ours, _PROBED):
                    steps = max(steps, _steps_of(optimizer, group, parameter))
        return steps


def site_facts(site: CallSite) -> dict[str, Any]:
    """Return a line of the user's code as hangwatch.efficiency.habits reads it."""
    file, line, function = site
    return {"file": file, "line": line, "function": function}


def _broadcasts(module: Any) -> int:
    """Return the collectives that synchronise its buffers, one a dtype; -1 if perhaps more."""
    buffers = list(module.module.buffers()) if module.broadcast_buffers else []
    if sum(buffer.numel() * buffer.element_size() for buffer in buffers) > _ONE_BROADCAST_BYTES:
        return -1
    return len({buffer.dtype for buffer in buffers})


def _steps_of(optimizer: Any, group: dict[str, Any], parameter: Any) -> int:
    """Return the most steps made; plain SGD keeps no count, but changes the parameter at each."""
    torch: Any = sys.modules["torch"]
    step = optimizer.state.get(parameter, {}).get("step")
    if isinstance(step, (int, float)):
        return int(step)
    if isinstance(step, torch.Tensor):
        # One on a device would have to be waited for.
        return int(step.item()) if step.device.type == "cpu" else -1
    if type(optimizer) is torch.optim.SGD and not group.get("fused"):
        return int(parameter._version)
    return -1


def _calls(module: Any) -> int:
    """Return the collectives of its group so far; -1 if the backend has no count, or is gone."""
    try:
        return int(module.process_group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError) as error:
        if is_foreign(error):
            raise
        return -1


def at_work() -> bool:
    """Return True if a thread is in a backward pass, or in C++ called by DDP's code."""
    for frame in sys._current_frames().values():
        if frame.f_code.co_filename.endswith(_REPLICATION):
            return True
        step: FrameType | None = frame
        while step is not None:
            if step.f_code.co_filename.endswith(_BACKWARD):
                return True
            step = step.f_back
    return False


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


class Practice:
    """The facts of one process. Errors of ours end this, and not the recording."""

    def __init__(
        self, groups: Groups, prefixes: Prefixes, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.guard = Guard()
        self.replicas = Replicas(groups, prefixes)
        self.loaders = Loaders(self.replicas, prefixes)
        self._now = now
        self._pid = os.getpid()
        self._written_at = now()
        self._written: bytes = b""

    @property
    def active(self) -> bool:
        """True if this is the process that the facts are of, and nothing of ours has failed."""
        return self.guard.open and self._pid == os.getpid()

    def attach(self) -> None:
        """Follow the constructors of torch's classes. Never raises Exception."""
        _current[:] = [self]
        with self.guard:
            _wrap_classes()

    def look(self, page: str, *, busy: bool) -> None:
        """Read the counts of torch, and write the facts that changed. Called by the sampler.

        busy: a thread may wait for a collective, with locks of torch's.
        """
        if not self.active:
            return
        with self.guard, sys.modules["torch"]._C.DisableTorchFunction():
            self.loaders.look()
            if not busy:
                self.replicas.look()
            if self._now() - self._written_at >= WRITE_S:
                self.leave(page)

    def finish(self, page: str) -> None:
        """Write what is known at the end."""
        if self.active:
            with self.guard:
                self.leave(page)

    def leave(self, page: str) -> None:
        """Write the facts next to the page, where there are new ones. Raises OSError."""
        self._written_at = self._now()
        facts = {"loaders": self.loaders.facts(), "replicas": self.replicas.facts()}
        data = json.dumps(facts).encode()
        if data == self._written or not any(facts.values()):
            return
        untrusted.replace(Path(page + SUFFIX), data)
        self._written = data


def _wrap_classes() -> None:
    modules: Any = sys.modules
    # First: where it fails nothing is wrapped.
    leave_alone(_report.__code__, deep=True)
    parallel = modules["torch.nn.parallel.distributed"].DistributedDataParallel
    loader = modules["torch.utils.data"].DataLoader
    optimizer = modules["torch.optim.optimizer"].Optimizer
    for owner, name, report in (
        (loader, "__iter__", lambda mine, *loop: mine.loaders.begin(*loop)),
        (parallel, "__init__", lambda mine, made, _: mine.replicas.add_module(made)),
        (optimizer, "__init__", lambda mine, made, _: mine.replicas.add_optimizer(made)),
    ):
        follow(owner, name, partial(_report, report))


def _report(report: Callable[[Practice, Any, Any], None], instance: Any, result: Any) -> None:
    """Have the Practice of this process take in what a followed method was called on."""
    practice = _current[0]
    if practice.active:
        torch: Any = sys.modules["torch"]
        # No mode of the program's (TorchFunctionMode) sees what is asked of tensors.
        with practice.guard, torch._C.DisableTorchFunction():
            report(practice, instance, result)
