"""All GPUs of this node, and the ranks that use them: nothing here ever waits for NVML."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hangwatch.errors import EvidenceError
from hangwatch.evidence import timing
from hangwatch.evidence.gpu.device import Errors, Gpu, Pace
from hangwatch.evidence.gpu.nvml import NO_DRIVER, Nvml, Unit
from hangwatch.model.gpu import GpuState, NodeGpus
from hangwatch.model.kinds import GpuHealth

MAX_GPUS = 64
"""So many threads, and as many again for events, are started at most."""
DEFAULT = Pace()
NOT_ASKED = "NVML is asked once there are ranks"
STARTING = "NVML has been asked for the GPUs just now"

ENOUGH_TO_SHARE = 2
"""Ranks on one device that may be there by mistake, and devices that they could have."""


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A rank of this node."""

    rank: int
    pid: int
    local_rank: int = -1
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES that it was started with, None where it is not set."""
    on_device: bool = False
    """It has opened a device of NVIDIA's, whether NVML names it or not."""


@dataclass(frozen=True, slots=True)
class Use:
    """The unit that a rank uses, as its place in a sequence of units."""

    unit: int
    assumed: bool = False
    """NVML does not name the rank's process."""


def uses(ranks: Iterable[LocalRank], units: Sequence[Unit]) -> dict[int, Use]:
    """Return rank to the unit on which it has most memory; ranks that use none are left out.

    NVML counts pids as the machine does, a container as it likes. A rank that has a device and
    that NVML names on none is taken to use the unit that its LOCAL_RANK means.
    """
    used: dict[int, Use] = {}
    for rank in ranks:
        named = [at for at, unit in enumerate(units) if rank.pid in unit.processes]
        if named:
            used[rank.rank] = Use(min(named, key=partial(_preference, rank, units)))
        elif rank.on_device:
            meant = _meant(rank, units)
            if meant is not None:
                used[rank.rank] = Use(meant, assumed=True)
    return used


def _preference(rank: LocalRank, units: Sequence[Unit], at: int) -> tuple[int, bool, int]:
    return -units[at].processes[rank.pid], units[at].state.index != rank.local_rank, at


def _meant(rank: LocalRank, units: Sequence[Unit]) -> int | None:
    """Return the unit that CUDA's device LOCAL_RANK would be, by the rank's variables."""
    at = max(rank.local_rank, 0)
    if rank.visible is None:
        return at if at < len(units) else None
    words = [word.strip() for word in rank.visible.split(",")]
    if len(words) == 1:
        at = 0
    if at >= len(words) or not words[at]:
        return None
    word = words[at]
    if word.isascii() and word.isdecimal():
        index = int(word)
        return next((n for n, unit in enumerate(units) if unit.state.index == index), None)
    return next((n for n, unit in enumerate(units) if unit.state.uuid.startswith(word)), None)


def crowded(
    ranks: Sequence[LocalRank], units: Sequence[Unit], used: Mapping[int, Use]
) -> int | None:
    """Return the one unit that all ranks share while others are idle, None where that is not so.

    None too where each rank was shown one device only: then it is wanted.
    """
    if len(ranks) < ENOUGH_TO_SHARE or len(units) < ENOUGH_TO_SHARE:
        return None
    if any(rank.rank not in used or used[rank.rank].assumed for rank in ranks):
        return None
    shared = {use.unit for use in used.values()}
    chosen = all(rank.visible is not None and "," not in rank.visible for rank in ranks)
    idle = any(
        not unit.processes and unit.state.health is GpuHealth.OK and at not in shared
        for at, unit in enumerate(units)
    )
    return shared.pop() if len(shared) == 1 and idle and not chosen else None


@dataclass(frozen=True, slots=True)
class SavedErrors:
    """The errors of one GPU (Errors), as the next watchdog has to know them."""

    xids: tuple[tuple[int, int, int, float], ...]
    """Number, GPU instance, how often, and when last."""
    ecc_before: int | None
    ecc_new: int
    ecc_at: float


class Gpus:
    """Starts with the first ranks, and reads while there are any.

    off: why not to begin at all, such as ``--no-gpu``.
    """

    def __init__(self, off: str = "", pace: Pace = DEFAULT) -> None:
        self._off = off or NOT_ASKED
        self._never = bool(off)
        self._pace = pace
        self._active = threading.Event()
        self._asked_at = 0.0
        self._gpus: tuple[Gpu, ...] = ()
        self._ranks: tuple[LocalRank, ...] = ()
        self._last: dict[int, tuple[int, str]] = {}
        """Rank to its pid, and the UUID of what it was last seen to use."""
        self._earlier: dict[str, Errors] = {}
        self.driver = ""
        """Version of the driver, empty while it is unknown."""

    @property
    def trouble(self) -> str:
        """Reason why NVML gives nothing, empty if it does, or need not, or may soon."""
        why = self._why_off()
        return why if self._asked_at and why != STARTING else ""

    @property
    def all_answered(self) -> bool:
        """True once NVML has answered for each GPU."""
        return bool(self._gpus) and all(gpu.answered for gpu in self._gpus)

    @property
    def without_events(self) -> dict[str, str]:
        """UUID of each GPU whose Xids cannot be known, to the reason."""
        return {gpu.uuid: gpu.no_events for gpu in self._gpus if gpu.no_events}

    def watch(self, ranks: Sequence[LocalRank], *, active: bool) -> None:
        """Take the ranks that this node has had. active: some of them still run, so read."""
        if self._never:
            return
        self._ranks = tuple(ranks)
        if not active:
            self._active.clear()
            return
        self._active.set()
        if not self._asked_at:
            self._asked_at = time.monotonic()
            self._off = ""
            threading.Thread(target=self._begin, name="nvml", daemon=True).start()
        self._remember(self._units())

    def node(self) -> NodeGpus:
        """Return all GPUs, or MIG devices, as they are known now."""
        units = self._units()
        used = self._used(units)
        return NodeGpus(
            tuple(_with_ranks(unit.state, at, used) for at, unit in enumerate(units)),
            self._why_off(),
        )

    def by_rank(self) -> dict[int, GpuState]:
        """Return the GPU of each rank that uses one, or used one."""
        return {rank: gpu for gpu in self.node().gpus for rank in gpu.ranks}

    def crowded(self) -> GpuState | None:
        """Return the GPU that all ranks share while others are idle, None where that is not so."""
        units = self._units()
        used = uses(self._ranks, units)
        at = crowded(self._ranks, units, used)
        return None if at is None else _with_ranks(units[at].state, at, used)

    def _remember(self, units: Sequence[Unit]) -> None:
        used = uses(self._ranks, units)
        for rank in self._ranks:
            use = used.get(rank.rank)
            if use is not None and not use.assumed:
                self._last[rank.rank] = rank.pid, units[use.unit].state.uuid

    def _used(self, units: Sequence[Unit]) -> dict[int, Use]:
        """Return rank to its unit; the last known one if NVML no longer names its process."""
        used = uses(self._ranks, units)
        places = {unit.state.uuid: at for at, unit in enumerate(units)}
        for rank in self._ranks:
            pid, uuid = self._last.get(rank.rank, (0, ""))
            last = places.get(uuid) if pid == rank.pid else None
            if last is not None and (rank.rank not in used or used[rank.rank].assumed):
                used[rank.rank] = Use(last)
        return used

    def export(self) -> dict[str, SavedErrors]:
        """Return the errors of each GPU by its UUID, for restore()."""
        found = {**self._earlier, **{gpu.uuid: gpu.errors for gpu in self._gpus}}
        return {
            uuid: SavedErrors(
                tuple((*key, *value) for key, value in dict(errors.xids).items()),
                errors.ecc_before,
                errors.ecc_new,
                errors.ecc_at,
            )
            for uuid, errors in found.items()
        }

    def restore(self, saved: Mapping[str, SavedErrors]) -> None:
        """Take over the errors that an earlier watchdog has counted."""
        for uuid, one in saved.items():
            xids = {(number, instance): (count, at) for number, instance, count, at in one.xids}
            self._earlier[uuid] = Errors(xids, one.ecc_before, one.ecc_new, one.ecc_at)

    def _begin(self) -> None:
        """Load NVML and start a thread for each GPU; this may block as long as it likes."""
        try:
            nvml = Nvml()
            count = nvml.count()
        except EvidenceError as error:
            self._off = str(error)
            return
        except Exception as error:  # noqa: BLE001 (whatever pynvml makes of an odd library)
            self._off = f"NVML: {type(error).__name__}: {error}"
            return
        self.driver = nvml.driver_version()
        if not count:
            self._off = "the NVIDIA driver has no GPU here"
        self._gpus = tuple(
            Gpu(nvml, index, self._active, self._earlier, self._pace)
            for index in range(min(count, MAX_GPUS))
        )

    def _units(self) -> list[Unit]:
        return [unit for gpu in self._gpus for unit in gpu.units()]

    def _why_off(self) -> str:
        if self._off or self._gpus:
            return self._off
        waited_s = time.monotonic() - self._asked_at
        return (
            f"NVML has not answered yet ({waited_s:.0f} s)"
            if waited_s > self._pace.silent_s
            else STARTING
        )


def _with_ranks(state: GpuState, at: int, used: Mapping[int, Use]) -> GpuState:
    mine = {rank: use for rank, use in used.items() if use.unit == at}
    return replace(
        state,
        ranks=tuple(sorted(mine)),
        assumed=bool(mine) and all(use.assumed for use in mine.values()),
    )


def examine_gpus() -> str:
    """Return the driver and its GPUs, in one line. Raises EvidenceError with what is wrong."""
    gpus = Gpus()
    gpus.watch((), active=True)
    deadline = time.monotonic() + timing.NVML_ANSWER_S
    while time.monotonic() < deadline and not (gpus.trouble or gpus.all_answered):
        time.sleep(timing.NVML_POLL_S)
    if gpus.trouble == NO_DRIVER:
        return f"none: {NO_DRIVER}"
    if gpus.trouble:
        raise EvidenceError(gpus.trouble)
    what, odd = _models(gpus), list(_oddities(gpus))
    if not gpus.all_answered:
        odd.append(f"NVML has not answered within {timing.NVML_ANSWER_S:g} s")
    if odd:
        raise EvidenceError("; ".join((what, *odd)))
    return what


def _models(gpus: Gpus) -> str:
    names = Counter(gpu.name or "unknown GPU" for gpu in gpus.node().gpus)
    models = ", ".join(f"{count} x {name}" for name, count in names.items())
    return f"{models or 'no GPU'}, driver {gpus.driver or 'unknown'}"


def _oddities(gpus: Gpus) -> Iterator[str]:
    for gpu in gpus.node().gpus:
        if gpu.health is not GpuHealth.OK:
            yield f"GPU {gpu.index} is {gpu.health.replace('_', ' ')}"
        if gpu.unreadable:
            yield f"GPU {gpu.index} has no reading of {', '.join(gpu.unreadable)}"
    for uuid, why in gpus.without_events.items():
        yield f"Xid errors of {uuid} are not reported ({why})"
