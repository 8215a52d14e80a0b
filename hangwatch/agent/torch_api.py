"""Finds out what the torch of this process has of what the agent relies on.

All that depends on the version of torch is decided here, by what there is and not by its
number, but for what has to be known before torch is imported. What is missing, and what
is there that hangwatch does not know, is said on the page (``RankPage.torch_lacks``), so
that a new torch is noticed at once.

=========  ===================================================================================
since      difference
=========  ===================================================================================
2.5        NCCL's recorder can be read as JSON, with the status of each group; before, pickled
2.7        std::string in the wheels is that of the C++11 ABI: c10d's functions can be called
           from ours, without the GIL (native/dump.cpp)
2.8        the general Flight Recorder, which has gloo's collectives; its size has a new name,
           and the old one prints a warning
2.8        code is kept from the compiler by an execution strategy, before by skip_code()
2.13       all_gather_single, reduce_scatter_single and all_to_all_single
2.15       gather_single; a general recorder for each backend, and another C++ signature
2.15       the name nccl stands for the backend nccl2, whose calls a hook of torch's records, as
           those of any backend that does not by itself
=========  ===================================================================================
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from hangwatch.model.operations import METHODS, RECORD_THEMSELVES
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import CodeType

NCCL = "_dump_nccl_trace_json"
GENERAL = "_dump_fr_trace_json"
_PICKLED = "_dump_nccl_trace"
_UNREAD = "xccl"
"""The backend whose own recorder was never seen here."""
_FAKE = "fake"
"""One that does nothing."""

SIZE = "TORCH_FR_BUFFER_SIZE"
OLD_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_SIZE_RENAMED_IN = (2, 8)

_WORLD = ("default_pg", "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config")
"""Attributes of distributed_c10d._World that distinguish groups."""
_NO_CALLS = frozenset({"_end_coalescing", "reconfigure"})
"""Methods that return a Work and issue none: the calls between were issued one by one, and a
group that is made again is another group."""
_RETURNS_WORK = re.compile(r"-> *[\w:.]*\bWork\b")
SHOWN = 4


class Recorders:
    """c10d's own recorders: NCCL's, and the general ones.

    Of these torch 2.15 has one for each backend, before there is one in all, gloo's. dumps are
    functions that dump a recorder as JSON, by name: NCCL, GENERAL, or the name of a backend.
    """

    def __init__(self, core: Any) -> None:
        """core: the module torch._C._distributed_c10d."""
        self.dumps: dict[str, Callable[..., bytes]] = {
            name: getattr(core, name) for name in (NCCL, GENERAL) if hasattr(core, name)
        }
        self.pickled: Callable[..., bytes] | None = getattr(core, _PICKLED, None)
        """Dumps NCCL's recorder pickled."""
        self.silent: frozenset[str] = frozenset()
        """Names of recorders to which completion is not reported."""
        self.unrecorded: list[str] = []
        """Backends of whose calls no recorder is known."""
        general = self.dumps.get(GENERAL)
        self._hooked = general if "backend" in (getattr(general, "__doc__", "") or "") else None

    def add(self, backend: str, *, reports_completion: bool) -> bool:
        """Read the recorder of a backend, too. Returns False where it has none of its own.

        reports_completion: the backend reports to its hooks which calls are complete.
        """
        own = backend in RECORD_THEMSELVES
        if backend in (_FAKE, *self.unrecorded) or (own and backend != _UNREAD):
            return False
        if own or self._hooked is None:
            self.unrecorded.append(backend)
            return False
        if backend not in self.dumps:
            # Not in place: the sampler's thread may be going through it.
            self.dumps = {**self.dumps, backend: partial(self._hooked, backend=backend)}
        if not reports_completion:
            self.silent |= {backend}
        return True

    def lack(self) -> str:
        """Return a sentence that names the backends without a recorder, empty if there are none."""
        if not self.unrecorded:
            return ""
        names = _listed(self.unrecorded)
        return f"what C++ issues through {names} has no name: no recorder of its calls is known"


def backends(group: Any) -> dict[str, str]:
    """Return the name of the backend for each type of device, such as ``cuda: nccl2``.

    Its own name, which is not that by which it was asked for. Empty where a group does not say.
    """
    try:
        found = {str(one.type): str(group._get_backend(one).name()) for one in group._device_types}
    except Exception as error:  # of a class of the user's, perhaps
        if is_foreign(error):
            raise
        return {}
    return dict(sorted(found.items()))


def reports_completion(group: Any) -> bool:
    """Return True if hooks of the group learn which of its calls are complete."""
    try:
        return bool(group.supports_completion_hooks)
    except Exception as error:
        if is_foreign(error):
            raise
        return False


def stream_function(
    modules: Mapping[str, Any] = sys.modules,
) -> Callable[[int], int] | None:
    """Return torch's function for the current CUDA stream, None where torch has no CUDA.

    The compiler of torch.compile calls it as well (torch/_inductor): of all ways to the handle
    the only one with a stable name, 0.1 us a call.
    """
    found: Callable[[int], int] | None = getattr(
        modules.get("torch._C"), "_cuda_getCurrentRawStream", None
    )
    return found


def reads_old_size(version: str | None) -> bool:
    """Return True if a torch of that version has the recorder's size from OLD_SIZE.

    Later ones read it, too, and print a warning on every rank (getCvarInt in
    torch/csrc/distributed/c10d/Utils.hpp).
    """
    known = re.match(r"(\d+)\.(\d+)", version or "")
    return known is not None and (int(known[1]), int(known[2])) < _SIZE_RENAMED_IN


def keep_compiler_off(core: Any, code: CodeType, *, deep: bool) -> None:
    """Have torch.compile neither compile frames of this code nor break its graphs at them.

    core: torch._C._dynamo.eval_frame. deep: nor what they call; until 2.7 that cannot be
    said, and is compiled where a compiled function calls it. As torch._dynamo.eval_frame.
    skip_code does, without importing torch._dynamo, which takes seconds. Raises
    AttributeError for a torch that has no such thing.
    """
    if not hasattr(core, "_FrameAction"):
        core.skip_code(code)
        return
    skip, default = core._FrameAction.SKIP, core._FrameAction.DEFAULT
    strategy = core._FrameExecStrategy(skip, skip if deep else default)
    core.set_code_exec_strategy(code, strategy)


def lacks(
    c10d: Any, recorders: Recorders, wrapped: Iterable[str], *, gil_free: bool | None
) -> Iterator[str]:
    """Yield a sentence for each thing that is missing, or not known here, the worst first.

    wrapped: the methods of ProcessGroup and Work that are recorded. gil_free: True if all
    recorders can be read without the GIL, None where that is not torch's to decide.
    """
    known = set(wrapped)
    world = getattr(c10d, "_world", None)
    gone = [name for name in _WORLD if not hasattr(world, name)]
    if gone:
        yield f"its groups are not known: torch.distributed has no {_listed(gone)}"
    group = c10d.ProcessGroup
    if not hasattr(group, "_get_sequence_number_for_group"):
        yield "what C++ issues is not counted: a group has no sequence number"
    gone = sorted(method.name for method in METHODS if method.core and method.name not in known)
    if gone:
        yield f"calls of {_listed(gone)} are not seen: they have gone from ProcessGroup"
    if "wait" not in known:
        yield "that a rank waits for its work is not seen: Work has no wait()"
    new = sorted(name for name in dir(group) if name not in known and _issues(group, name))
    if new:
        yield f"calls of {_listed(new)} are not seen: they are new in ProcessGroup"
    if GENERAL not in recorders.dumps:
        yield "what C++ issues through gloo has no name: its Flight Recorder came with torch 2.8"
    if recorders.pickled is not None and NCCL not in recorders.dumps:
        yield "NCCL's Flight Recorder does not show what is unfinished: that came with torch 2.5"
    if recorders.dumps and gil_free is False:
        yield "the Flight Recorder of a rank that holds the GIL cannot be read"


def _issues(group: type, name: str) -> bool:
    """Return True if a method that hangwatch does not know returns a Work, by its signature."""
    if name in _NO_CALLS or name.startswith("__"):
        return False
    said = getattr(getattr(group, name, None), "__doc__", None)
    return isinstance(said, str) and _RETURNS_WORK.search(said) is not None


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
