"""A page of this process, written by either recorder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_torch import Group, Work

import hangwatch
from hangwatch import _native
from hangwatch.evidence.pages.reader import parse_page
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangwatch.model.page import PageEvent, PageGroup, RankPage

only_native = pytest.mark.parametrize("recorder", ["native"], indirect=True)
"""What the one in Python does not do, or does otherwise."""
only_python = pytest.mark.parametrize("recorder", ["python"], indirect=True)
WHY_PYTHON = "asked for by a test"
IDENTITY: dict[str, Any] = {
    "pid": 4711,
    "start_ticks": 99,
    "rank": 5,
    "world_size": 16,
    "local_rank": 1,
    "local_world_size": 4,
    "restart": 2,
    "host": "node-7",
    "store_host": "10.0.0.1",
    "store_port": 29500,
    "run_id": "run-1",
    "program": "/opt/site-packages/company/",
}


class Recording:
    """A recorder and its page, whose groups have the slots in which they were made."""

    def __init__(self, recorder: Any, path: Path) -> None:
        self.recorder = recorder
        self.native = recorder is _native
        self.path = path
        self.resolved: list[Any] = []
        """The groups whose slots were asked for."""
        self.slots: dict[int, int] = {}
        self.resolve: Callable[[Any], int] = self.slot
        recorder.open_page(str(path), IDENTITY)
        self.set_prefixes()

    def set_prefixes(self, *internal: str, program: Sequence[str] = ()) -> None:
        """Have these directories, and hangwatch, be no user's code."""
        self.recorder.set_prefixes([*internal, f"{Path(hangwatch.__file__).parent}/"], program)

    def wrap(self) -> list[str]:
        """Have the calls of the fake of torch recorded."""
        names: list[str] = self.recorder.wrap_methods(Group, Work, self._resolve, is_foreign)
        return names

    def _resolve(self, group: Any) -> int:
        return self.resolve(group)

    def slot(self, group: Any) -> int:
        self.resolved.append(group)
        return self.slots.get(id(group), -1)

    def define(
        self, slot: int = 0, ranks: Sequence[int] = (0, 1), backend: str = "gloo", desc: str = ""
    ) -> None:
        assert self.recorder.define_group(slot, str(slot), desc, ranks, 0, backend)

    def group(self, backend: str = "gloo", ranks: Sequence[int] = (0, 1), number: int = 0) -> Group:
        """A new group, in the next slot."""
        group = Group(number=number)
        slot = self.slots[id(group)] = len(self.slots)
        self.define(slot, ranks, backend)
        return group

    def begin(self, seq: int = 1, slot: int = 0, **changes: Any) -> int:
        """Record a call from here."""
        values: dict[str, Any] = {
            "op": "all_gather_object",
            "wire": "all_gather",
            "seq": seq,
            "p2p": False,
            "dtype": "uint8",
            "shape": [5, 2],
            "root": -1,
            "peer": -1,
            "tag": 0,
            "is_async": False,
        }
        index: int = self.recorder.record_begin(slot, *(values | changes).values())
        return index

    def end(self, index: int, *, failed: bool = False) -> None:
        self.recorder.record_end(index, failed)

    def last_seq(self, group: Group, completed: int = -1) -> int:
        """Sample the first group; its last sequence number, -1 if that is not known now."""
        seq: int = self.recorder.sample_number(0, group, completed)
        return seq

    @property
    def now(self) -> RankPage:
        """The page as it stands."""
        return parse_page(self.path.read_bytes())

    @property
    def page(self) -> RankPage:
        """The page after a beat, without which the recorder in Python does not write calls."""
        if not self.native:
            self.recorder.beat("", pending=False, pending_changed=False)
        return self.now

    @property
    def last(self) -> PageEvent:
        return self.page.events[-1]

    @property
    def first_group(self) -> PageGroup:
        return self.page.groups[0]
