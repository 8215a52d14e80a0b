"""Rank pages for tests, written as the Python recorder writes them."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hangwatch.model import json_page
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import Identity, PageEvent, PageGroup, RankPage

if TYPE_CHECKING:
    from pathlib import Path

WORLD = GroupKey((0, 1), "default_pg")
SITE = Site("/home/me/train.py", 42, "train")


def page(rank: int = 0, **changes: Any) -> RankPage:
    """A rank of two that has done three collectives; changes: RankPage's fields.

    pid, start_ticks, restart and world_size go into its identity.
    """
    identity: dict[str, Any] = {
        "pid": os.getpid(),
        "start_ticks": 1,
        "rank": rank,
        "world_size": 2,
        "local_world_size": 2,
    }
    for name in ("pid", "start_ticks", "restart", "world_size", "local_world_size", "store_port"):
        if name in changes:
            identity[name] = changes.pop(name)
    now_ns = time.monotonic_ns()
    values: dict[str, Any] = {
        "identity": Identity(**identity),
        "recorder": "python",
        "recorder_reason": "",
        "phase": Phase.RUNNING,
        "phase_ns": now_ns,
        "created_ns": now_ns,
        "heartbeat_ns": 0,
        "gil_ns": now_ns,
        "handling": "",
        "pending_since_ns": 0,
        "in_call": "",
        "in_call_ns": 0,
        "in_call_site": None,
        "exception": None,
        "swallowed": 0,
        "disarmed": "",
        "groups": (group(),),
        "events": (),
    }
    return RankPage(**{**values, **changes})


def group(enqueued: int = 3, **changes: Any) -> PageGroup:
    """The world's progress on one rank."""
    values: dict[str, Any] = {
        "slot": 0,
        "name": "0",
        "key": WORLD,
        "backend": "gloo",
        "enqueued": enqueued,
        "completed": enqueued,
        "entered": enqueued,
        "left": enqueued,
        "changed_ns": time.monotonic_ns(),
    }
    return PageGroup(**{**values, **changes})


def event(seq: int = 3, state: OpState = OpState.BLOCKED, **changes: Any) -> PageEvent:
    """An all_reduce of the world."""
    now_ns = time.monotonic_ns()
    values: dict[str, Any] = {
        "index": seq,
        "slot": 0,
        "op": "all_reduce",
        "wire": "all_reduce",
        "seq": seq,
        "dtype": "float32",
        "shape": (4,),
        "state": state,
        "issued_ns": now_ns,
        "blocked_ns": now_ns if state is OpState.BLOCKED else 0,
        "site": SITE,
    }
    return PageEvent(**{**values, **changes})


def write(run_dir: Path, content: RankPage) -> Path:
    """Put a page where its rank would, or write it anew."""
    identity = content.identity
    path = run_dir / f"r{identity.restart}-{identity.rank}-{identity.pid}.page"
    generation = 1
    if path.exists():
        data = bytearray(path.read_bytes())
        generation = 1 + max(
            int.from_bytes(data[at : at + 8], "little")
            for at in (8, 8 + (json_page.PAGE_BYTES - 8) // 2)
        )
    else:
        data = bytearray(json_page.PAGE_BYTES)
    json_page.write(data, generation, json_page.encode(asdict(content)))
    with path.open("r+b" if path.exists() else "xb") as file:
        file.write(data)
    return path
