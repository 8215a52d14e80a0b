"""Writes the page of a rank in Python, where the native module cannot be loaded.

The page is rewritten by the sampler's beat, and where the rank enters or leaves
a set-up call or a phase. So what the rank did since the last beat is lost when it
is killed, nothing is seen while the GIL is held, and each call costs some
microseconds. The page says so.

The same rules as in native/groups.cpp, without its care for threads that issue
calls in one group at the same time.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import threading
import time
import weakref
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hangwatch.agent.call_site import Prefixes, user_site
from hangwatch.agent.exception_text import text_of, type_name
from hangwatch.agent.guard import Ticket, Turn
from hangwatch.agent.periodic import FlagBell
from hangwatch.model import json_page
from hangwatch.model.operations import NCCL
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangwatch.model.operations import Method

NEW_GROUPS = 32
MARKS = 16
RING_EVENTS = 256
MEMBERS_SHOWN = 1024
"""Members of a group that a page shows which is too small for all; fewer if need be."""
WORKS = 1024
"""Handles of asynchronous calls to remember before the dead ones are swept."""
Fields = dict[str, Any]


class PythonPage(FlagBell):
    """The page, and the calls in it; see the stub of hangwatch._native for each function."""

    MAX_GROUPS = 512

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.prefixes = Prefixes()
        self.numbering: dict[int, Numbering] = {}
        self._reason = reason
        self._file: PageFile | None = None
        self._reset({})
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def armed(self) -> bool:
        """True if this process has a page and records."""
        file = self._file
        return file is not None and not self._disarmed and file.pid == os.getpid()

    def open_page(self, path: str, identity: dict[str, Any]) -> None:
        if self._file is not None:
            raise RuntimeError("this process has a rank page already")
        file = PageFile(path)
        self._reset(identity)
        self._file = file
        self._flush()

    def start_heartbeat(self, interval_ms: int, with_moments: bool, /) -> None:
        """Do nothing: a heartbeat would need the GIL like everything here."""

    def stop_heartbeat(self) -> None:
        """Do nothing, as start_heartbeat()."""

    def set_identity(self, rank: int, world_size: int, store_host: str, store_port: int) -> None:
        self._values["identity"] |= {
            "rank": rank,
            "world_size": world_size,
            "store_host": store_host,
            "store_port": store_port,
        }
        self._flush()

    def set_phase(self, phase: str) -> None:
        self._values |= {"phase": phase, "phase_ns": time.monotonic_ns()}
        self._flush()

    def set_in_call(self, name: str, file: str, line: int, function: str) -> None:
        self._values |= {
            "in_call": name,
            "in_call_ns": time.monotonic_ns() if name else 0,
            "in_call_site": _site(file, line, function),
        }
        self._flush()

    def set_mark(
        self, index: int, kind: str, text: str, count: int, file: str, line: int, function: str
    ) -> None:
        if index >= MARKS:
            return
        mark = {"kind": kind, "text": text, "count": count, "ns": time.monotonic_ns()}
        marks = self._values["marks"]
        marks[index:] = [mark | {"site": _site(file, line, function)}, *marks[index + 1 :]]
        self._flush()

    def add_new_group(
        self, number: int, ranks: Sequence[int], file: str, line: int, function: str
    ) -> None:
        call = {
            "index": next(self._new_group_indices),
            "ns": time.monotonic_ns(),
            "number": number,
            "ranks": list(ranks),
            "site": _site(file, line, function),
        }
        self._values["new_groups"] = [*self._values["new_groups"], call][-NEW_GROUPS:]
        self._flush()

    def set_exception(self, type: str, message: str, file: str, line: int, function: str) -> None:
        self._values["exception"] = {
            "type": type,
            "message": message,
            "site": _site(file, line, function),
            "at_ns": time.monotonic_ns(),
        }
        self._flush()

    def last_thrown(self) -> tuple[str, str]:
        return self._thrown

    def keep_thrown(self, error: BaseException | None) -> None:
        """Keep type and text of ``error``, which a call of torch's has raised."""
        if error is not None:
            self._thrown = type_name(type(error)), text_of(error)

    def set_disarmed(self, reason: str) -> None:
        self._values["disarmed"] = reason
        self._flush()

    def set_torch_lacks(self, what: str) -> None:
        self._values["torch_lacks"] = what
        self._flush()

    def count_swallowed(self) -> int:
        self._values["swallowed"] += 1
        return int(self._values["swallowed"])

    def set_groups_left_out(self, groups: int) -> None:
        self._values["groups_left_out"] = groups

    def beat(self, handling: str, pending: bool, pending_changed: bool) -> None:
        now = time.monotonic_ns()
        since = self._values["pending_since_ns"]
        if not pending:
            since = 0
        elif pending_changed or not since:
            since = now
        self._values |= {"handling": handling, "gil_ns": now, "pending_since_ns": since}
        self._flush()

    def define_group(
        self, slot: int, name: str, desc: str, ranks: Sequence[int], index: int, backend: str
    ) -> bool:
        # What the group that had the slot before has done is not this one's doing. A finalizer
        # may make a call amid a loop over pairs, which are made one by one; not amid a copy.
        for number, event in self._events.copy().items():
            if event["slot"] == slot:
                self._events.pop(number, None)
        self.numbering[slot] = Numbering(backend)
        now = time.monotonic_ns()
        self._groups[slot] = {
            "slot": slot,
            "name": name,
            "key": {"ranks": list(ranks), "desc": desc, "index": index},
            "backend": backend,
            "enqueued": 0,
            "completed": -1,
            "entered": 0,
            "left": 0,
            "p2p": 0,
            "changed_ns": now,
            "made_ns": now,
            "alive": True,
        }
        return True

    def sample_number(self, slot: int, group: Any, completed: int) -> int:
        try:
            number = int(group._get_sequence_number_for_group())
        except RuntimeError as error:  # a backend without numbers
            if is_foreign(error):
                raise
            return -1
        seq = self.numbering[slot].last_seq(number)
        if seq >= 0:
            self._raise(slot, "enqueued", seq)
        if seq >= 0 and completed >= number:
            self._raise(slot, "completed", seq)
        return seq

    def retire_group(self, slot: int) -> None:
        self._groups[slot]["ended_ns"] = time.monotonic_ns()
        self._groups[slot]["alive"] = False

    def disarm(self) -> None:
        self._disarmed = True

    def use_dumps(self, nccl: bool, general: bool) -> None:
        """Do nothing: there are no threads without the GIL here, whatever torch has."""

    def add_dump(self, backend: str) -> None:
        """Do nothing, as above."""

    def answer_request(self) -> bool:
        """Return False: there are no threads without the GIL here."""
        return False

    def use_streams(self, current_stream: Callable[[int], int]) -> None:
        """Do nothing: beacons are written by the native module only."""

    def members(self, slot: int) -> list[int]:
        """Return the global ranks of the group, in its order."""
        ranks: list[int] = self._groups[slot]["key"]["ranks"]
        return ranks

    def set_prefixes(self, internal: Sequence[str], program: Sequence[str]) -> None:
        self.prefixes = Prefixes(internal, program)

    def record_begin(
        self,
        slot: int,
        op: str,
        wire: str,
        seq: int,
        p2p: bool,
        dtype: str,
        shape: Sequence[int],
        root: int,
        peer: int,
        tag: int,
        is_async: bool,
    ) -> int:
        if not self.armed or slot not in self._groups:
            return -1
        now = time.monotonic_ns()
        site = _site(*user_site(sys._getframe(), self.prefixes))
        group = self._groups[slot]
        index = next(self._indices)
        event = {
            "index": index,
            "slot": slot,
            "op": op,
            "wire": wire,
            "seq": seq,
            "p2p": p2p,
            "dtype": dtype,
            "shape": list(shape),
            "root": root,
            "peer": peer,
            "tag": tag,
            "is_async": is_async,
            "state": "blocked",
            "issued_ns": now,
            "blocked_ns": now,
            "done_ns": 0,
            "site": site,
            "thread": threading.get_native_id(),
        }
        # By their own indices: another call may have been recorded since that was drawn.
        self._events.pop(index - RING_EVENTS, None)
        # Nothing is called from here on, so what a handler raises finds all of it or nothing.
        self._events[index] = event
        if p2p:
            group["p2p"] += 1
            group["changed_ns"] = now
        else:
            group["entered"] += 1
            if seq > group["enqueued"]:
                group["enqueued"], group["changed_ns"] = seq, now
        return index

    def set_splits(self, index: int, splits: dict[str, list[int]]) -> None:
        """Record how many rows a call sends to each member, and takes from each."""
        event = self._events.get(index)
        if event is not None:
            event |= splits

    def record_cancelled(self, index: int) -> None:
        """Take back a call that was recorded: it is not made."""
        event = self._events.pop(index, None)
        if event is None:
            return
        group = self._groups[event["slot"]]
        if event["p2p"]:
            group["p2p"] -= 1
        else:
            group["entered"] -= 1
            if group["enqueued"] == event["seq"]:
                group["enqueued"] = event["seq"] - 1

    def record_end(self, index: int, failed: bool) -> None:
        self._move(index, "failed" if failed else "done")

    def record_issued(self, index: int, work: object) -> None:
        """Record that the call has returned and goes on until ``work`` was waited for."""
        self._move(index, "issued")
        self._works[id(work)] = weakref.ref(work), index
        if len(self._works) > WORKS:
            for key in list(self._works):
                handle, _ = self._works.get(key, (None, -1))
                if handle is not None and handle() is None:
                    self._works.pop(key, None)

    def wait_begin(self, work: object) -> int:
        """Record a wait for ``work``; return the index of its call, -1 if it is unknown."""
        handle, index = self._works.get(id(work), (None, -1))
        if handle is None or handle() is not work:
            return -1
        self._move(index, "blocked")
        return index

    def _move(self, index: int, state: str) -> None:
        event = self._events.get(index)
        if event is None or event["state"] in {"done", "failed"}:
            return
        now = time.monotonic_ns()
        event["state"] = state
        if state in {"done", "failed"}:
            event["done_ns"] = now
            self._groups[event["slot"]]["left"] += not event["p2p"]
        else:
            event["blocked_ns"] = now if state == "blocked" else 0

    def _raise(self, slot: int, counter: str, value: int) -> None:
        """Set a counter that only grows, whatever order samples come in."""
        group = self._groups[slot]
        if value > group[counter]:
            group[counter] = value
            if counter == "enqueued":
                group["changed_ns"] = time.monotonic_ns()

    def _reset(self, identity: dict[str, Any]) -> None:
        self._values: dict[str, Any] = {
            "identity": dict(identity),
            "recorder": "python",
            "recorder_reason": self._reason,
            "phase": "born",
            "phase_ns": time.monotonic_ns(),
            "created_ns": time.monotonic_ns(),
            "heartbeat_ns": 0,
            "gil_ns": 0,
            "handling": "",
            "pending_since_ns": 0,
            "in_call": "",
            "in_call_ns": 0,
            "in_call_site": None,
            "new_groups": [],
            "marks": [],
            "exception": None,
            "swallowed": 0,
            "groups_left_out": 0,
            "disarmed": "",
            "torch_lacks": "",
        }
        self._groups: dict[int, dict[str, Any]] = {}
        self._events: dict[int, dict[str, Any]] = {}
        self._indices = itertools.count()
        self._new_group_indices = itertools.count()
        self._works: dict[int, tuple[weakref.ref[object], int]] = {}
        self._thrown = "", ""
        self._disarmed = False

    def _flush(self) -> None:
        file = self._file
        if file is not None:
            file.write(self._values, self._groups, self._events)

    def _after_fork(self) -> None:
        self._file = None  # the parent's; it stays mapped, and is written no more


def _site(file: str, line: int, function: str) -> dict[str, Any] | None:
    return {"file": file, "line": line, "function": function} if file else None


class Numbering:
    """Sequence numbers of one group; ``backends`` looks like ``cpu:gloo,cuda:gloo``.

    On gloo c10d's number counts point-to-point calls too, on NCCL it does not.
    Elsewhere, and where it cannot be read, the calls that Python issues are
    counted here, and those of C++ are not seen.
    """

    def __init__(self, backends: str) -> None:
        names = {part.rpartition(":")[2] for part in backends.split(",")}
        self._counts_p2p = names == {"gloo"}
        self._readable = self._counts_p2p or (len(names) == 1 and names <= set(NCCL))
        self._adjust = 0
        """c10d's number less the sequence number."""
        self._own = 0
        self._p2p = 0
        self._unsettled = 0
        """Calls in progress that will change ``_adjust``."""

    def begin(self, method: Method, group: Any) -> tuple[int, int]:
        """Return (sequence number of the call, c10d's number before it or -1)."""
        before = self._read(group)
        count, p2p, shifts = method.seq_count, method.p2p, self._shifts(method)
        # Nothing is called from here on, so nothing comes in between.
        self._own += count
        self._p2p += p2p
        if shifts:
            self._unsettled += 1
        if method.p2p:
            return self._p2p, before
        return (before - self._adjust if before >= 0 else self._own - method.seq_count) + 1, before

    def cancel(self, method: Method) -> None:
        """Take back what begin() counted: the call is not made."""
        self._own -= method.seq_count
        self._p2p -= method.p2p
        if self._shifts(method):
            self._unsettled -= 1

    def end(self, method: Method, group: Any, before: int) -> None:
        """Learn from c10d's number now that the call has returned or raised."""
        if not self._shifts(method):
            return
        self._unsettled -= 1
        after = self._read(group)
        if after >= before >= 0:
            self._adjust += after - before - method.seq_count

    def last_seq(self, number: int) -> int:
        """Return the last sequence number if c10d's is ``number``; -1 if that is not known now."""
        if not self._readable or self._unsettled:
            return -1
        return number - self._adjust

    def _shifts(self, method: Method) -> bool:
        """Return True if c10d's number grows by something else than ``method.seq_count``."""
        return self._counts_p2p and (method.p2p or method.seq_count > 1)

    def _read(self, group: Any) -> int:
        if self._readable:
            try:
                return int(group._get_sequence_number_for_group())
            except RuntimeError as error:
                if is_foreign(error):
                    raise
                self._readable = False
        return -1


class PageFile:
    """A page of this process. Nothing is written by a fork's child."""

    def __init__(self, path: str) -> None:
        """Make the file. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            # Room is set aside first: a full file system answers a write to a mapping by SIGBUS.
            os.posix_fallocate(descriptor, 0, json_page.PAGE_BYTES)
            self._memory = _mapped(descriptor)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        self.pid = os.getpid()
        self._generation = 0
        self._writing = Turn()

    def write(
        self, values: Fields, groups: Mapping[int, Fields], events: Mapping[int, Fields]
    ) -> None:
        """Write the page, unless another thread does: the next beat writes it again."""
        if self.pid != os.getpid():
            return
        ticket = Ticket()
        try:
            if self._writing.take(ticket):
                copied = [dict(group) for group in list(groups.values())]
                newest = [dict(event) for event in list(events.values())]
                newest.sort(key=itemgetter("index"))
                text = _fitting(values, copied, newest[-RING_EVENTS:])
                self._generation += 1
                json_page.write(self._memory, self._generation, text)
        finally:
            ticket.over = True


def _mapped(descriptor: int) -> mmap.mmap:
    """Map a page's file until the process ends.

    The mapping has a descriptor of its own and closes that number when it goes: the program
    may have closed it meanwhile (as daemons close all), and the number be one of its files.
    """
    import ctypes  # torch has imported it already

    memory = mmap.mmap(descriptor, json_page.PAGE_BYTES)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return memory


def _fitting(values: Fields, groups: list[Fields], events: list[Fields]) -> bytes:
    """Return the page's text with as many of the newest events as there is room for.

    Where not even the groups fit, only their first members are kept.
    """
    shown = MEMBERS_SHOWN
    while True:
        try:
            return json_page.encode({**values, "groups": groups, "events": events})
        except ValueError:
            if events:
                events = events[len(events) // 2 + 1 :]
                continue
            if not shown:
                raise
            groups, shown = [_shortened(group, shown) for group in groups], shown // 4


def _shortened(group: Fields, shown: int) -> Fields:
    """Return the group with at most ``shown`` of its members, and their number."""
    ranks = group["key"]["ranks"]
    if len(ranks) <= shown:
        return group
    members = group.get("members", len(ranks))
    key = {**group["key"], "ranks": ranks[:shown]}
    return {**group, "key": key, "members": members, "truncated": True}
