"""Gathers facts on inefficient training habits of a rank, which hangwatch.efficiency judges.

The constructors of DistributedDataParallel and of optimizers are followed, and the begin of a
loop over a DataLoader; nothing that runs in a training step is. The sampler writes the facts
next to the page now and then (``<page>.practice``, JSON), and the watchdog reads them when the
job has ended, or at an incident.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hangwatch.agent.guard import Guard
from hangwatch.agent.practice.loaders import Loaders
from hangwatch.agent.practice.replicas import Replicas
from hangwatch.agent.record.wrapping import follow, leave_alone
from hangwatch.safety.foreign import Ignoring

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangwatch.agent.call_site import Prefixes
    from hangwatch.agent.record.groups import Groups

SUFFIX = ".practice"
WRITE_S = 5.0

_current: list[Practice] = []
"""The Practice of this process; a fork's child that becomes a rank puts its own here."""


class Practice:
    """The facts of one process. Errors of ours end this, and not the recording."""

    def __init__(
        self,
        groups: Groups,
        prefixes: Prefixes,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.guard = Guard(lambda: None, lambda _reason: None)
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

    def look(self, page: str) -> None:
        """Read the counts of torch, and write the facts that changed. Called by the sampler."""
        if not self.active:
            return
        with self.guard:
            self.loaders.look()
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
        draft = f"{page}{SUFFIX}.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with open(os.open(draft, flags, 0o600), "wb") as file:
                file.write(data)
        except OSError:
            with Ignoring(OSError):
                os.unlink(draft)
            raise
        os.replace(draft, page + SUFFIX)
        self._written = data


def _wrap_classes() -> None:
    modules: Any = sys.modules
    # First: where it fails nothing is wrapped.
    leave_alone(_report.__code__, deep=True)
    parallel = modules["torch.nn.parallel.distributed"].DistributedDataParallel
    _follow(modules["torch.utils.data"].DataLoader, "__iter__", _loop_begins)
    _follow(parallel, "__init__", _module_made)
    _follow(modules["torch.optim.optimizer"].Optimizer, "__init__", _optimizer_made)


def _follow(owner: type, name: str, report: Callable[[Practice, Any, Any], None]) -> None:
    """Call report(practice, instance, result) after a method of a class; once."""
    follow(owner, name, partial(_report, report))


def _report(report: Callable[[Practice, Any, Any], None], instance: Any, result: Any) -> None:
    practice = _current[0]
    if practice.active:
        torch: Any = sys.modules["torch"]
        # No mode of the program's (TorchFunctionMode) sees what is asked of tensors.
        with practice.guard, torch._C.DisableTorchFunction():
            report(practice, instance, result)


def _loop_begins(practice: Practice, loader: Any, iterator: Any) -> None:
    practice.loaders.begin(loader, iterator)


def _module_made(practice: Practice, module: Any, _result: Any) -> None:
    practice.replicas.add_module(module)


def _optimizer_made(practice: Practice, optimizer: Any, _result: Any) -> None:
    practice.replicas.add_optimizer(optimizer)
