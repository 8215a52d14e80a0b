"""Finds communication that goes round torch.distributed, so that none of it is recorded.

These calls cannot be counted, and a rank that waits in one seems to be in its own code. So the
page says that they are made (``RankPage.torch_lacks``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hangwatch.agent.record.hidden_wrappers import standing_for, uncounted
from hangwatch.model.operations import METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

_PYNCCL = ".device_communicators.pynccl"
"""End of the name of the module by which inference engines (vLLM, SGLang) call NCCL itself."""
_TORCHCOMMS = "torchcomms"
_CUSTOM_PG = "torch.distributed.custom_pg"
"""Lets classes of Python take over the functions of torch.distributed (pytorch#185475)."""
_METHODS = frozenset(method.name for method in METHODS)
_SHOWN = 4


class Bypasses:
    """Communication of this process that goes round torch.distributed."""

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self.found: list[str] = []
        """A sentence for each."""
        self._modules = modules
        self._count = 0
        """How many modules were loaded at the last look."""
        self._makes_comms = False
        self._watches_comms = False

    def look(self) -> bool:
        """Look at what the program has loaded; return True if something new was found."""
        known = len(self.found)
        if len(self._modules) != self._count:
            self._count = len(self._modules)
            self._watch_torchcomms()
            for name in filter(_is_pynccl, tuple(self._modules)):
                engine = name.partition(".")[0]
                self._find(f"what {engine} sends through NCCL by itself (pynccl) is not seen")
        if self._makes_comms:
            self._find("calls on communicators of torchcomms.new_comm() are not seen")
        return len(self.found) > known

    def take_over(self, kind: type, base: type, c10d: Any) -> bool:
        """Look at the class of a group; return True if it takes over torch's own functions.

        base: torch's ProcessGroup. c10d: torch.distributed.distributed_c10d.
        """
        names = list(_taken_over(kind, base, c10d)) if _CUSTOM_PG in self._modules else []
        if names:
            more = ", ..." if len(names) > _SHOWN else ""
            self._find(
                f"calls that {kind.__qualname__} takes over from torch.distributed "
                f"({', '.join(names[:_SHOWN])}{more}) are seen only as far as it hands them on"
            )
        return bool(names)

    def _watch_torchcomms(self) -> None:
        """Notice communicators that the program makes; those of torch.distributed are seen."""
        module = self._modules.get(_TORCHCOMMS)
        original = getattr(module, "new_comm", None)
        if self._watches_comms or module is None or original is None:
            return

        @standing_for(original)
        @uncounted
        def new_comm(*args: Any, **kwargs: Any) -> Any:
            self._makes_comms = True
            return original(*args, **kwargs)

        module.new_comm = new_comm  # type: ignore[attr-defined]
        self._watches_comms = True

    def _find(self, sentence: str) -> None:
        if sentence not in self.found:
            self.found.append(sentence)


def _is_pynccl(name: object) -> bool:
    return isinstance(name, str) and name.endswith(_PYNCCL)  # a program may put in anything


def _taken_over(kind: type, base: type, c10d: Any) -> Iterator[str]:
    """Yield the functions of torch.distributed for which a class has methods of its own."""
    functions = set(getattr(c10d, "__all__", ())) - _METHODS
    own = (one for one in kind.__mro__[: kind.__mro__.index(base)] if not _is_of_torch(one))
    yield from sorted({name for one in own for name in vars(one)} & functions)


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"
