"""Reads c10d's Flight Recorder, and finds out from it if there is unfinished work.

A job with groups of NCCL and of gloo has calls in two recorders.
"""

from __future__ import annotations

import _ctypes
import ctypes
import json
import os
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hangwatch.agent.torch_api import GENERAL, NCCL
from hangwatch.model.operations import ran_on_host
from hangwatch.safety import untrusted
from hangwatch.safety.foreign import Ignoring, is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangwatch.agent.torch_api import Recorders

DOUBT_AFTER_S = 0.9
"""Time for which a status stands still before the entries themselves are looked at."""
LOOK_AGAIN_S = 5.0
COSTLY_S = 1e-3
"""Time that an expensive status takes: it covers all groups that ever were."""
REST = 20
"""A costly status is asked for again after this many times what it took, and not at each group
that is destroyed."""
CUDA = "libcuda.so.1"
"""The driver's library."""
RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""
_drivers: dict[str, ctypes.CDLL] = {}
"""The libraries that were found, by name: a driver stays loaded."""

_Key = tuple[str, str]
"""Of a group: the recorder that has it, and its pg_id there."""
Status = dict[_Key, tuple[int, int]]
"""(last enqueued, last completed) of each group, in c10d's own counts."""


class _Look(NamedTuple):
    """The unfinished entries at one look."""

    at: float
    of: Status
    """The groups that were in doubt."""
    unfinished: set[_Key]


class FlightRecorder:
    """Reads c10d's recorders; with a size of 0 there is nothing in them."""

    def __init__(
        self,
        recorders: Recorders,
        now: Callable[[], float] = time.monotonic,
        answer_request: Callable[[], bool] = bool,
    ) -> None:
        self._recorders = recorders
        self._now = now
        self._answer_request = answer_request
        """Has a request answered without the GIL; returns False where that cannot be."""
        self._ended: Status = {}
        """Status of destroyed groups that left work unfinished."""
        self._left: list[tuple[str, Status]] = []
        """Destroyed groups, each with the status of all groups with unfinished work then."""
        self._to_forget: deque[str | None] = deque()
        """Groups that were destroyed since the status was read, by whatever thread."""
        self._rested_at = 0.0
        """Time from which the status may be read again."""
        self._last: Status = {}
        self._since = 0.0
        self._moved: dict[_Key, float] = {}
        """Time at which the status of a group last changed while any had unfinished work."""
        self._looked: _Look | None = None
        self._stood: float | None = None
        """Time since which the work stands that was unfinished at the last look, None for none."""
        self.host_may_wait = True
        """False if no collective was unfinished at the last look that a thread may wait for."""
        self._mixed: set[tuple[str, str]] = set()
        """Groups whose status is known to count two kinds of calls."""

    def status(self) -> Status:
        """Read how far each group has come that ever was."""
        began = self._now()
        groups: Status = {}
        for name, dump in self._complete_recorders():
            values = json.loads(dump(includeCollectives=False))
            for pg_id, status in values.get("pg_status", {}).items():
                enqueued = int(status["last_enqueued_collective"])
                groups[name, pg_id] = enqueued, int(status["last_completed_collective"])
        took_s = self._now() - began
        self._rested_at = began + took_s * (REST + 1) if took_s >= COSTLY_S else 0.0
        return groups

    def _complete_recorders(self) -> list[tuple[str, Callable[..., bytes]]]:
        """Return the recorders that know what is complete."""
        silent = self._recorders.silent
        return [named for named in self._recorders.dumps.items() if named[0] not in silent]

    @property
    def resting(self) -> bool:
        """True if reading the status is so costly that it has to wait."""
        return self._now() < self._rested_at

    def forget_ended(self, name: str | None) -> None:
        """Ignore what a destroyed group left unfinished, for ever perhaps; None for all groups."""
        if name == "":
            return  # it was none of torch's
        self._to_forget.append(name)
        if not self.resting:
            self._forget(self.status())

    def _forget(self, status: Status) -> None:
        names = set()
        for _ in range(len(self._to_forget)):
            with Ignoring(IndexError):  # another thread was faster
                names.add(self._to_forget.popleft())
        self._looked = None
        unfinished = {key: state for key, state in status.items() if _unfinished(state)}
        if None in names:
            self._ended, self._left = unfinished, []
            return
        still = {key: state for key, state in self._ended.items() if status.get(key) == state}
        # The entries of NCCL, which name the work, are not worth asking the device.
        self._ended = still | {key: s for key, s in unfinished.items() if key[0] == NCCL}
        rest = {key: state for key, state in unfinished.items() if key not in self._ended}
        if rest:
            self._left += [(name, rest) for name in names if name]

    def _find_owners(self) -> None:
        """Find in the entries the unfinished work that the destroyed groups had left."""
        left, self._left = self._left, []
        if not left:
            return
        owners: dict[tuple[str, str], str] = {}
        for function, dump in self._complete_recorders():
            if function != NCCL:
                entries = json.loads(_with_entries(dump)).get("entries", ())
                owners |= {(function, str(e["pg_id"])): _name_of(e) for e in entries}
        for name, unfinished in left:
            self._ended |= {
                key: state for key, state in unfinished.items() if owners.get(key, name) == name
            }

    def progress(self) -> tuple[bool | None, bool]:
        """Return (work is unfinished, it is other work than the last time).

        The first is None where that cannot be known: where nothing is recorded, or a backend
        does not report to its recorder what is complete. The status names the call
        that was completed last, not how far all are completed: of two that
        overlap on gloo the first may be the last to complete. So a status that
        stands still is checked against the entries, which know it of each call;
        that takes 20 ms for 2,000 of them, with the GIL released. NCCL completes the calls of
        a group in their turn, so its status is believed, but for groups of which it counts
        two kinds of calls: its entries are read with the GIL, and ask the device, which may
        have to wait for what the program does in the driver.

        Of several groups of gloo's with unfinished work it is that which has stood for longest: a
        thread may go on in a group of its own for as long as the program hangs. Groups of a device
        wait there for each other, so that they stand only together; they come first.
        """
        status = self.status()
        if self._to_forget:
            self._forget(status)
        self._find_owners()
        now = self._now()
        self._mixed |= {key for key, state in status.items() if self._is_mixed(key, state)}
        open_ = {
            key
            for key, state in status.items()
            if _unfinished(state) and self._ended.get(key) != state
        }
        changed = status != self._last
        if changed:
            if open_:
                last = self._last
                self._moved |= {key: now for key, state in status.items() if last.get(key) != state}
            self._last, self._since = status, now
        if open_ or now - self._since >= DOUBT_AFTER_S:
            open_ = self._without_completed(open_, now)
        since = self._longest(open_) if open_ else None
        other = changed or self._stood is not None if since is None else since != self._stood
        self._stood = since
        known = bool(status) and (since is not None or not self._recorders.silent)
        self.host_may_wait = not known or any(name != NCCL for name, _ in open_)
        return (since is not None if known else None), other

    def _without_completed(self, open_: set[_Key], now: float) -> set[_Key]:
        """The groups with unfinished work, by their entries where a status has stood for long."""
        sure = {key for key in open_ if key[0] == NCCL and key not in self._mixed}
        doubtful = {
            key: self._last[key]
            for key in open_ - sure
            if now - self._stands_since(key) >= DOUBT_AFTER_S
        }
        all_stand = now - self._since >= DOUBT_AFTER_S and not sure
        if not doubtful and not all_stand:
            return open_
        looked = self._looked
        if (
            looked is None
            or not doubtful.items() <= looked.of.items()
            or (all_stand and looked.at < self._since)
            or (looked.unfinished and now - looked.at >= LOOK_AGAIN_S)
        ):
            looked = self._looked = _Look(now, doubtful, set(self._unfinished_groups()))
        return (open_ - doubtful.keys()) | (
            looked.unfinished if all_stand else looked.unfinished & doubtful.keys()
        )

    def _longest(self, open_: set[_Key]) -> float:
        """Since when that group stands which has stood for longest; those of a device first."""
        on_device = {key for key in open_ if key[0] != GENERAL}
        return min(self._stands_since(key) for key in on_device or open_)

    def _stands_since(self, key: _Key) -> float:
        """Since when the status of a group stands; of those of a device that of all."""
        if key[0] == GENERAL:
            return self._moved.get(key, self._since)
        moved = (at for one, at in self._moved.items() if one[0] == key[0])
        return max(moved, default=self._since)

    def _is_mixed(self, key: tuple[str, str], state: tuple[int, int]) -> bool:
        """Return True if a status goes back, or has more calls completed than enqueued."""
        before = self._last.get(key, (-1, -1))
        enqueued, completed = state
        back = enqueued < before[0] or completed < before[1]
        return key[0] == NCCL and (back or completed > enqueued)

    def _unfinished_groups(self) -> Iterator[_Key]:
        """The groups that were not destroyed and have an entry that is not retired."""
        for name, dump in self._complete_recorders():
            # Where the status shows nothing unfinished the device need not be asked; and
            # nothing retires the entries of a job that waits for each call on the host
            # (TORCH_NCCL_BLOCKING_WAIT).
            if name == NCCL and not any(
                _unfinished(state) for key, state in self._last.items() if key[0] == name
            ):
                continue
            data = _with_entries(dump)
            if b'"retired":false' not in data:
                continue
            retired: dict[tuple[object, ...], bool] = {}
            keys: dict[tuple[object, ...], _Key] = {}
            entries = json.loads(data).get("entries", ())
            if name not in (NCCL, GENERAL):
                entries = self._without_those_of_the_host(entries)
            for entry, call in _with_calls(entries):
                key = name, str(entry["pg_id"])
                ended = key in self._ended and self._ended[key] == self._last.get(key)
                done = retired.get(call, False) or entry["retired"] or ended
                if done and name not in (NCCL, GENERAL):
                    # A hook never hears again of a call that its backend has refused. Of one
                    # kind a later one that is complete shows that none before it is waited for.
                    retired = {one: was for one, was in retired.items() if one[:2] != call[:2]}
                retired[call], keys[call] = done, key
            yield from {keys[call] for call, done in retired.items() if not done}

    def _without_those_of_the_host(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what a hook recorded but for barriers that gloo ran, which gloo has, too."""
        general = self._recorders.dumps.get(GENERAL)
        if general is None or not any(not e["retired"] and _is_barrier(e) for e in entries):
            return entries
        by_host: dict[str, list[int]] = {}
        for entry in json.loads(_with_entries(general)).get("entries", ()):
            if _is_barrier(entry):
                by_host.setdefault(_name_of(entry), []).append(entry["time_created_ns"])
        of_group: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            of_group.setdefault(_name_of(entry), []).append(entry)
        others: set[int] = set()
        for group, made in of_group.items():
            hooked = [(entry["time_created_ns"], _is_barrier(entry)) for entry in made]
            on_host = ran_on_host(hooked, by_host.get(group, ()))
            others |= {
                e["record_id"] for e, is_other in zip(made, on_host, strict=True) if is_other
            }
        return [entry for entry in entries if entry["record_id"] not in others]

    def answer(self, page: str) -> bool:
        """Answer the watchdog if it has asked for the recorder (``<page>.req``).

        The one that removes the request answers it: this, or native/dump.hpp.
        """
        request = page + ".req"
        if not os.path.exists(request):
            return False
        if self._answer_request():
            return True
        try:
            os.unlink(request)
        except FileNotFoundError:
            return False
        self.leave(page)
        return True

    def leave(self, page: str) -> None:
        """Write the recorder next to the page (``<page>.flight``). Raises OSError."""
        untrusted.replace(Path(page + ".flight"), self._dump_all())

    def _dump_all(self) -> bytes:
        """Return the recorders that have entries, a line of JSON for each.

        Where none has entries, one of them; of a torch without JSON, the pickled one.
        """
        recorders = self._recorders
        if not recorders.dumps and recorders.pickled is not None:
            with captures_left_alone():
                return recorders.pickled(True, False, False)  # noqa: FBT003 (entries, no stacks, all)
        dumps = [_with_entries(dump) for dump in recorders.dumps.values()] or [b"{}"]
        return b"".join(data + b"\n" for data in dumps if b'"entries"' in data) or dumps[-1]


def _with_entries(dump: Callable[..., bytes]) -> bytes:
    """Return the recorder with its entries. NCCL's asks the device how far each is."""
    with captures_left_alone():
        return dump(includeCollectives=True)


def _name_of(entry: dict[str, Any]) -> str:
    """Return the name of the group that an entry is of."""
    return str(next(iter(entry.get("process_group") or ()), ""))


def _is_barrier(entry: dict[str, Any]) -> bool:
    return str(entry.get("profiling_name", "")).endswith(":barrier")


def _with_calls(
    entries: list[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], tuple[object, ...]]]:
    """Yield each entry with a key for its call, or for its group of coalesced calls.

    Of a coalesced group only the last entry, which ends it, is ever retired
    (evidence/flight/entries.py). That of sends and recvs is called none of them
    (evidence/flight/recorder.py).
    """
    last: dict[object, tuple[object, tuple[object, ...]]] = {}
    for entry in entries:
        p2p, group, number = entry.get("is_p2p", False), entry["pg_id"], entry.get("op_id")
        seqs = entry.get("collective_seq_id"), entry.get("p2p_seq_id") if p2p else None
        call: tuple[object, ...] = (group, p2p, *seqs)
        if not p2p and str(entry.get("profiling_name")).endswith(":coalesced"):
            before, parts = last.get(group, (None, call))
            call = parts if parts[1] and before == number else call
        last[group] = number, call
        yield entry, call


def _unfinished(state: tuple[int, int]) -> bool:
    """Return True if a status may show unfinished work: where its two numbers differ.

    NCCL counts collectives and point-to-point calls separately, and the
    status has the number of the last one, of either kind.
    """
    enqueued, completed = state
    return enqueued != completed


@contextmanager
def captures_left_alone(library: str = CUDA) -> Iterator[None]:
    """Have what this thread asks of the driver disturb no capture of a CUDA graph.

    While a thread captures in the global mode, which is torch's, no other thread may ask an
    event if it is done: the capture would be invalid (CUDA's documentation of
    cudaStreamBeginCapture). The entries of NCCL's recorder cannot be read without asking the
    events of all that is unfinished (update_state in FlightRecorderDetail.hpp). A thread in the
    relaxed mode may ask.
    """
    exchange = _exchange(library)
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(RELAXED)
    changed = exchange(ctypes.byref(mode)) == 0  # mode is now the one before
    try:
        yield
    finally:
        if changed:
            exchange(ctypes.byref(mode))


def _exchange(library: str) -> ctypes._NamedFuncPointer | None:
    """Return the driver's function; None where this process has not loaded the driver."""
    driver = _drivers.get(library)
    if driver is None:
        flags = os.RTLD_NOLOAD | os.RTLD_NOW
        try:
            _ctypes.dlopen(library, flags)  # ctypes leaves a cycle behind, also where it fails
        except OSError as error:
            if is_foreign(error):
                raise
            return None
        driver = _drivers[library] = ctypes.CDLL(library, mode=flags)
    return getattr(driver, "cuThreadExchangeStreamCaptureMode", None)
