"""Watches how a rank's DistributedDataParallel modules average their gradients.

A module is seen when it is made and at its first forward pass. From then on the sampler
reads what torch itself counts: nothing is in the way of a training step.
"""

from __future__ import annotations

import sys
import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from hangwatch.agent.call_site import user_site
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from types import FrameType

    from hangwatch.agent.call_site import CallSite, Prefixes
    from hangwatch.agent.record.groups import Groups

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
        return any(module.module.training for module in self._alive())

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

        The counts lie behind a lock of the reducer's that a backward pass holds, also
        one that never ends. So no thread may be in one, and we hold the GIL until we ask.
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

    def _alive(self) -> list[Any]:
        modules = (replica.module() for replica in self._replicas)
        return [module for module in modules if module is not None]

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
    """Return a line of the user's code as hangwatch.efficiency reads it."""
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
