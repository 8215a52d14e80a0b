"""One GPU under watch: a thread that reads its figures, and one that waits for its events."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from hangwatch.evidence import timing
from hangwatch.evidence.gpu.nvml import Asker, Nvml, Unit, UnusableError, read
from hangwatch.model.gpu import GpuState, Xid
from hangwatch.model.kinds import GpuHealth

MAX_XIDS = 64
_WHOLE = 0xFFFFFFFF
"""GPU instance of an event that is about the whole GPU."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two readings of a GPU, and until NVML counts as silent."""

    read_s: float = timing.NVML_READ_S
    silent_s: float = timing.NVML_SILENT_S


@dataclass(slots=True)
class Errors:
    """The errors of a GPU since the run was first watched."""

    xids: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    """(Number, GPU instance) to how often, and when last (time.time(), which the next watchdog
    can go on with)."""
    ecc_before: int | None = None
    """Uncorrected ECC errors when the run was first watched."""
    ecc_new: int = 0
    ecc_at: float = 0.0

    def note_xid(self, number: int, instance: int, at: float) -> None:
        """Count an Xid."""
        key = number, instance
        if key in self.xids or len(self.xids) < MAX_XIDS:
            self.xids[key] = self.xids.get(key, (0, 0.0))[0] + 1, at

    def note_ecc(self, count: int, at: float) -> None:
        """Note the count of uncorrected ECC errors since the driver was loaded."""
        if self.ecc_before is None or count < self.ecc_before:  # the driver was reloaded
            self.ecc_before = count
        elif count - self.ecc_before > self.ecc_new:
            self.ecc_new, self.ecc_at = count - self.ecc_before, at

    def shown(self, unit: Unit, now: float) -> GpuState:
        """Return the state of a unit with its part of the errors."""
        xids: dict[int, tuple[int, float]] = {}
        for (number, instance), (count, at) in dict(self.xids).items():
            if instance == _WHOLE or unit.instance is None or instance == unit.instance:
                before, last = xids.get(number, (0, 0.0))
                xids[number] = before + count, max(last, at)
        return replace(
            unit.state,
            xids=tuple(
                Xid(number, count, max(0.0, now - at))
                for number, (count, at) in sorted(xids.items())
            ),
            ecc_uncorrected_new=self.ecc_new,
            ecc_uncorrected_age_s=max(0.0, now - self.ecc_at) if self.ecc_new else None,
        )


class Gpu:
    """One GPU. Its threads are daemons: one that is stuck in NVML is left behind.

    active: set while there are ranks; else nothing is read.
    earlier: by UUID, the errors that an earlier watchdog of the run knew of; it takes its own.
    """

    def __init__(
        self,
        nvml: Nvml,
        index: int,
        active: threading.Event,
        earlier: dict[str, Errors],
        pace: Pace,
    ) -> None:
        self._nvml = nvml
        self._active = active
        self._earlier = earlier
        self._pace = pace
        self._bare = GpuState(f"index-{index}", index)
        self.errors = Errors()
        self.health = GpuHealth.OK
        self.no_events = ""
        """Reason why no Xids can be known, empty if they can, as far as is known."""
        self.answered = False
        """NVML has come back with something, be it an error."""
        self._units: tuple[Unit, ...] = (Unit(self._bare, {}),)
        self._busy_since = time.monotonic()
        """Time of the request that NVML has not answered yet, 0 if there is none."""
        threading.Thread(target=self._read, name=f"gpu-{index}", daemon=True).start()

    @property
    def uuid(self) -> str:
        """UUID of the GPU itself; ``index-N`` as long as it is not known."""
        return self._bare.uuid

    def units(self) -> tuple[Unit, ...]:
        """Return what was read last, with the GPU's health."""
        health, since = self.health, self._busy_since
        if health is GpuHealth.OK and since and time.monotonic() - since > self._pace.silent_s:
            health = GpuHealth.SILENT
        now = time.time()
        units = self._units
        if health is not GpuHealth.OK:  # its figures are outdated, but its users are not
            units = tuple(
                replace(unit, state=_without_figures(unit.state, health)) for unit in units
            )
        return tuple(replace(unit, state=self.errors.shown(unit, now)) for unit in units)

    def _read(self) -> None:
        """Identify the GPU, then read it until it cannot be read any more."""
        handle = None
        while self.health is GpuHealth.OK:
            self._busy_since = time.monotonic()
            try:
                if handle is None:
                    handle = self._identify()
                if handle is None:
                    self._units = (Unit(replace(self._bare, unreadable=("handle",)), {}),)
                else:
                    self._units = read(self._nvml, handle, self._bare)
                    self._note_ecc()
            except UnusableError as error:
                self.health = error.health
            except Exception as error:  # noqa: BLE001 (whatever pynvml makes of an odd answer)
                odd = f"everything ({type(error).__name__})"
                self._units = (Unit(replace(self._bare, unreadable=(odd,)), {}),)
            self._busy_since, self.answered = 0.0, True
            time.sleep(self._pace.read_s)
            self._active.wait()

    def _identify(self) -> Any:
        """Return the handle of the GPU, None where NVML gives none. Raises UnusableError."""
        ask, lib, index = Asker(self._nvml), self._nvml.lib, self._bare.index
        handle = ask("handle", lambda: lib.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return None
        uuid = ask("UUID", lambda: str(lib.nvmlDeviceGetUUID(handle)))
        name = ask("name", lambda: str(lib.nvmlDeviceGetName(handle)))
        self._bare = replace(self._bare, uuid=uuid or self._bare.uuid, name=name or "")
        self._units = (Unit(self._bare, {}),)
        self.errors = self._earlier.pop(self._bare.uuid, Errors())
        self._register_for_events(handle)
        return handle

    def _note_ecc(self) -> None:
        count = self._units[0].state.ecc_uncorrected if self._units else None
        if count is not None:
            self.errors.note_ecc(count, time.time())

    def _register_for_events(self, handle: Any) -> None:
        """Have NVML report Xids from now on. It does not report earlier ones."""
        lib = self._nvml.lib
        try:
            events = lib.nvmlEventSetCreate()
            lib.nvmlDeviceRegisterEvents(handle, lib.nvmlEventTypeXidCriticalError, events)
        except (lib.NVMLError, AttributeError) as error:
            self.no_events = str(error)
            return
        name = f"gpu-{self._bare.index}-events"
        threading.Thread(
            target=self._wait_for_events, args=(events,), name=name, daemon=True
        ).start()

    def _wait_for_events(self, events: Any) -> None:
        """Count Xids as they come."""
        lib = self._nvml.lib
        while True:
            try:
                event = lib.nvmlEventSetWait(events, int(timing.NVML_EVENTS_S * 1000))
            except lib.NVMLError as error:
                if self._nvml.lacks(error):
                    self.no_events = str(error)
                    return
                if error.value != lib.NVML_ERROR_TIMEOUT:
                    time.sleep(timing.NVML_EVENTS_S)  # the next one may return at once, too
                continue
            if event.eventType == lib.nvmlEventTypeXidCriticalError:
                self.errors.note_xid(int(event.eventData), int(event.gpuInstanceId), time.time())


def _without_figures(state: GpuState, health: GpuHealth) -> GpuState:
    return GpuState(state.uuid, state.index, state.name, state.parent, health)
