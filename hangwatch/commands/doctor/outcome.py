"""One rank of a trial as far as it needs no torch: its outcome, the roll call, the connections.

The outcome is a JSON file for the doctor that started the trial. Failures of the roll call or of a
connection inside a backend would be a hang, or an error that names no rank and no node. Standard
library and preflight only: it runs in the job's own interpreter.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hangwatch.commands import timing
from hangwatch.preflight.rendezvous import Answer, connect

PATTERN = "outcome-*.json"
ALL_PAIRS = 16
"""Up to so many nodes all try each other; of more, each tries its neighbours and the first."""


def init_s(patience_s: float) -> float:
    """Return the timeout of a trial's process group: thousands of ranks take their time."""
    return max(timing.TRIAL_INIT_LEAST_S, patience_s / 2)


def longest_s(patience_s: float) -> float:
    """Return the time after which a rank of a trial ends by itself, whatever hangs."""
    return patience_s + 2 * init_s(patience_s) + 2 * timing.TRIAL_STEP_S


class Stage(StrEnum):
    """The stage that a rank has reached."""

    STORE = "store"
    """It connects to the store at MASTER_ADDR and MASTER_PORT."""
    ROLL_CALL = "roll_call"
    """It waits until all ranks are there."""
    CONNECTIONS = "connections"
    """The nodes connect to each other, each with each."""
    INIT = "init"
    """It is in init_process_group or the first collective."""
    TIMING = "timing"
    DONE = "done"


@dataclass(slots=True)
class Outcome:
    """Everything that a rank has seen."""

    rank: int
    world_size: int
    stage: Stage = Stage.STORE
    error: str = ""
    backend: str = ""
    missing: list[int] = field(default_factory=list)
    """Ranks that were not at the roll call."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """The facts of each rank, by rank: see rank.facts()."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Connections that failed: from, to, address, why."""
    times: dict[str, Any] = field(default_factory=dict)
    """See rank.measure()."""

    def leave(self, directory: str) -> None:
        """Write it for the doctor; a node without the doctor has no such directory."""
        if not os.path.isdir(directory):  # noqa: PTH112 (as the other lines, without pathlib)
            return
        path = Path(directory, f"outcome-{self.rank}.json")
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps(asdict(self)), "utf-8")
        fresh.replace(path)


def read(directory: Path) -> list[Outcome]:
    """Return the outcomes of the ranks of this machine, by rank."""
    contents = [json.loads(path.read_bytes()) for path in directory.glob(PATTERN)]
    outcomes = [Outcome(**{**content, "stage": Stage(content["stage"])}) for content in contents]
    return sorted(outcomes, key=lambda outcome: outcome.rank)


@dataclass(frozen=True, slots=True)
class Roll:
    """The ranks that are present, with their facts, and the missing ones."""

    ranks: dict[int, dict[str, Any]]
    missing: list[int]

    def leaders(self) -> list[int]:
        """Return the first rank of each node, in the order of the nodes."""
        first: dict[str, int] = {}
        for rank in sorted(self.ranks):
            first.setdefault(self.ranks[rank]["node"], rank)
        return list(first.values())


def call_roll(
    store: Any, rank: int, facts: dict[str, Any], world_size: int, within_s: float
) -> Roll:
    """Announce this rank, and wait for the others."""
    store.set(f"rank/{rank}", json.dumps(facts))
    keys = {f"rank/{member}": member for member in range(world_size)}
    missing = await_keys(store, list(keys), within_s)
    present = [key for key in keys if key not in missing]
    values = store.multi_get(present)
    ranks = {keys[key]: json.loads(value) for key, value in zip(present, values, strict=True)}
    return Roll(ranks, [member for key, member in keys.items() if key in missing])


def await_keys(store: Any, keys: Sequence[str], within_s: float) -> set[str]:
    """Wait until all keys are set; return the keys that are not when the time is over."""
    deadline = time.monotonic() + within_s
    missing = list(keys)
    while True:
        if store.check(missing):
            return set()
        if time.monotonic() > deadline:
            return {key for key in missing if not store.check([key])}
        time.sleep(timing.TRIAL_POLL_S)


def try_connections(
    store: Any, rank: int, roll: Roll, address: str, within_s: float
) -> list[dict[str, str]]:
    """Listen at the address that the backend would take, and connect to those of the others.

    For the first rank of each node. Returns the failures of all nodes.
    """
    leaders = roll.leaders()
    names = {leader: str(roll.ranks[leader]["host"]) for leader in leaders}
    with socket.create_server(
        (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
    ) as server:
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        port = server.getsockname()[1]
        store.set(f"address/{rank}", json.dumps([address, port]))
        failed = []
        for other in partners(leaders, rank):
            await_keys(store, [f"address/{other}"], within_s)
            its_address, its_port = json.loads(store.get(f"address/{other}"))
            why = _why_not(its_address, its_port)
            if why:
                failed.append(
                    {"from": names[rank], "to": names[other], "address": its_address, "why": why}
                )
        store.set(f"connected/{rank}", json.dumps(failed))
        keys = [f"connected/{leader}" for leader in leaders]
        silent = await_keys(store, keys, within_s)
        answers = store.multi_get([key for key in keys if key not in silent])
    return [failure for answer in answers for failure in json.loads(answer)]


def partners(leaders: Sequence[int], rank: int) -> Iterable[int]:
    """Return the leaders that one of them connects to."""
    if len(leaders) <= ALL_PAIRS:
        return [leader for leader in leaders if leader != rank]
    at = leaders.index(rank)
    near = {leaders[at - 1], leaders[(at + 1) % len(leaders)], leaders[0]}
    return sorted(near - {rank})


def _why_not(address: str, port: int) -> str:
    """Return why another node's address cannot be used, empty if it answers."""
    if address.startswith("127.") or address == "::1":
        return "a loopback address, which no other node reaches"
    answer = connect(address, port, timing.TRIAL_CONNECT_S)
    if answer is Answer.LISTENS:
        return ""
    return {
        Answer.REFUSED: "refused",
        Answer.SILENT: f"no answer within {timing.TRIAL_CONNECT_S:g} s",
        Answer.UNREACHABLE: "no route",
    }[answer]


def _accept(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return
