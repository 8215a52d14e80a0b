"""An incident of a job on many nodes, and a search for stragglers: seconds, bytes, memory.

A real TCPStore in a process of its own; two processes are the watchdogs of all nodes but
one, with 8 simulated ranks each; another is the watchdog that claims the incident. What
they say to the store, pack, unpack and diagnose is the watchdog's own code; pages and
stacks are simulated. Of the time that the nodes take to answer most is their number on
one machine: what one needs is printed too. As root it runs in a network namespace of
its own, where no name service is asked: the store asks it about each connection.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from bench_diagnose import MIB, SCRIPT, SOURCE, THRESHOLDS, made

from hangwatch.console import News
from hangwatch.diagnosis import diagnose
from hangwatch.efficiency.nodes import KEPT, NodeMoments, SlowNodes, find_slow
from hangwatch.model.kinds import OpState
from hangwatch.model.snapshot import Frame, JobSnapshot, RankSnapshot, ThreadStack
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers.comparison import Comparison
from hangwatch.watchdog.peers.exchange import Exchange
from hangwatch.watchdog.peers.messages import Local, Node, Published, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES = {10: (5, 2), 100: (25, 4), 1280: (80, 16)}
"""Nodes to the replicas and stages of their job; tensor parallel groups of 8."""
RANKS = 8
HEADER = (
    "nodes  ranks  light s  full s  published after s  its CPU s  heard after s  KiB a node  "
    "claimant MiB  packing ms a node  idle bytes  comparing s  its CPU s  KiB a node"
)
PARTS = 2
"""Processes that share the nodes."""
PREFIX = "hangwatch/job/0"
HISTORY = 200
"""Calls in the ring of a page."""
SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def simulated(nodes: int, numbers: Sequence[int]) -> tuple[list[Local], int]:
    """What some nodes know of their ranks, with stacks; and the rank that is stuck."""
    job, stuck = made(*SIZES[nodes])
    parts = [job.ranks[number * RANKS : (number + 1) * RANKS] for number in numbers]
    return [
        Local(tuple(_with_history(rank) for rank in part), {SCRIPT: SOURCE}) for part in parts
    ], stuck


def _with_history(rank: RankSnapshot) -> RankSnapshot:
    *done, last = rank.ops
    if last.state is OpState.DONE:
        done.append(last)
    # Earlier places of the same groups, each as many as the ring has room for.
    earlier = [
        replace(op, seq=max(1, op.seq - back), issued_age_s=42.0 + back * 1.1 + rank.rank % 7 / 3)
        for back in range(HISTORY // len(done), 0, -1)
        for op in done
    ]
    waiting = (Frame(SCRIPT, rank.ops[-1].site.line, "train"),) if rank.ops[-1].site else ()
    thread = ThreadStack("MainThread", rank.pid, False, False, waiting)  # noqa: FBT003 (active, owns_gil)
    return replace(rank, ops=(*earlier, *rank.ops), threads=rank.threads or (thread,))


def light(local: Local) -> Local:
    return Local(tuple(replace(rank, threads=None) for rank in local.ranks))


def moments(number: int, ranks: tuple[int, ...]) -> NodeMoments:
    """What a node tells of its last minutes; the ranks of the second one are slow."""
    chance = Random(number)  # noqa: S311 (chance that can be repeated)
    all_awake, none = (1 << len(ranks)) - 1, 0

    def at() -> int:
        if number != 1 and chance.random() < 0.35:
            return none
        return all_awake if chance.random() < 0.6 else 1 << chance.randrange(len(ranks))

    parts = (Counter(at() for _ in range(30)) for _ in range(KEPT))
    told = tuple(tuple(chain.from_iterable(sorted(part.items()))) for part in parts)
    groups, peers = (0b1111, 0b11110000), tuple((rank, rank + 64) for rank in ranks)
    return NodeMoments(f"n{number}", ranks, 3.0, told, groups=groups, peers=peers)


def watchdog(
    number: int, local: Local, heard: asyncio.Event, take: Callable[[SlowNodes], None]
) -> Exchange:
    by_level = light(local), local

    async def answer(full: bool) -> Local:  # noqa: FBT001 (the exchange's callback)
        return by_level[full]

    def on_verdict(published: Published) -> None:
        if published.verdicts:
            heard.set()

    ranks = tuple(rank.rank for rank in local.ranks)
    node = Node(f"n{number}:20260102-030405-{number}", f"n{number}", ranks)
    told = moments(number, ranks)
    comparison = Comparison(lambda: told, find_slow, lambda found, _: take(found))
    return Exchange(node, News(2), answer, on_verdict, comparison)


async def others(nodes: int, port: int, part: int) -> None:
    """A part of the watchdogs but the first; they answer until they are ended."""
    numbers = range(1 + part, nodes, PARTS)
    known, _ = simulated(nodes, numbers)
    began = time.process_time()
    for local in known[:50]:
        pack("n", local, nodes * RANKS)
    packing_s = (time.process_time() - began) / len(known[:50])
    heard = [asyncio.Event() for _ in numbers]
    watchdogs = [
        watchdog(number, local, event, lambda _: None)
        for number, local, event in zip(numbers, known, heard, strict=True)
    ]
    for at in range(0, len(watchdogs), 64):
        some = watchdogs[at : at + 64]
        await asyncio.gather(*(one.join("127.0.0.1", port, PREFIX, nodes * RANKS) for one in some))
    if not all(one.joined for one in watchdogs):
        sys.exit(f"a node could not join: {next(w.why_not for w in watchdogs if not w.joined)}")
    print(json.dumps({"packing_s": packing_s}), flush=True)
    while any(len(one.roster) < nodes for one in watchdogs):  # noqa: ASYNC110 (in the background)
        await asyncio.sleep(0.1)
    print("all know each other", flush=True)
    await asyncio.gather(*(event.wait() for event in heard))
    print(json.dumps({"heard_at": time.monotonic()}), flush=True)
    await asyncio.Event().wait()


async def claimant(nodes: int, port: int, server: int, idle_s: float) -> None:
    """The first watchdog: joins, idles, and then has an incident."""
    timing.GATHER_S = timing.GATHER_FULL_S  # so many nodes on one machine need longer
    (own,), stuck = simulated(nodes, [0])
    world_size = nodes * RANKS
    slow: list[SlowNodes] = []
    one = watchdog(0, own, asyncio.Event(), slow.append)
    await one.join("127.0.0.1", port, PREFIX, world_size)
    await asyncio.to_thread(sys.stdin.readline)
    quiet = _moved(server)
    await asyncio.sleep(idle_s)
    quiet = _moved(server) - quiet
    gc.collect()
    _forget_peak()
    before_mib, before = _resident("VmRSS"), _moved(server)
    began, cpu = time.monotonic(), time.process_time()
    found: dict[str, Any] = {"idle_bytes": quiet, "before_mib": before_mib}
    for full in (False, True):
        at = time.monotonic()
        gathered = await one.ask(full=full)
        asked_s = time.monotonic() - at
        if len(gathered.others) != nodes - 1:
            sys.exit(f"{len(gathered.others)} of {nodes - 1} answered: {gathered.unseen[:3]}")
        ranks = [rank for local in (own, *gathered.others) for rank in local.ranks]
        ranks.sort(key=lambda rank: rank.rank)
        verdicts = diagnose(JobSnapshot(world_size, tuple(ranks)), THRESHOLDS)
        if verdicts[0].culprits != (stuck,):
            sys.exit(f"wrong: {verdicts[0].headline}")
        await one.publish(gathered.round, Published("n0", verdicts if full else (), "/reports"))
        del ranks, gathered
        name = "full" if full else "light"
        found[f"{name}_ask_s"] = asked_s
        found[f"{name}_s"] = time.monotonic() - at
    found["published_at"] = time.monotonic()
    found["total_s"] = found["published_at"] - began
    found["cpu_s"] = time.process_time() - cpu
    found["max_mib"] = _resident("VmHWM")
    await asyncio.sleep(1.0)
    found["kib_a_node"] = (_moved(server) - before) / nodes / 1024
    before, began, cpu = _moved(server), time.monotonic(), time.process_time()
    await one.compare()
    found["comparing_s"] = time.monotonic() - began
    found["comparing_cpu_s"] = time.process_time() - cpu
    if slow[0].ranks != tuple(range(RANKS, 2 * RANKS)):
        sys.exit(f"wrong: {slow[0]}")
    await asyncio.sleep(1.0)
    found["comparing_kib"] = (_moved(server) - before) / nodes / 1024
    print(json.dumps(found), flush=True)
    await one.close()


def _moved(pid: int) -> int:
    """Bytes that a process has read and written."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # proc(5)


def _resident(what: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(what)) / MIB


def measure(nodes: int, idle_s: float) -> dict[str, Any]:
    """One size, each part in a process of its own."""
    with ExitStack() as stack:

        def start(*arguments: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(  # noqa: S603 (our own Python)
                [sys.executable, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TORCH_CPP_LOG_LEVEL": "FATAL"},
            )
            stack.callback(process.kill)
            return process

        def line(process: subprocess.Popen[str]) -> str:
            assert process.stdout is not None
            return process.stdout.readline() or sys.exit(f"{process.args!r} said nothing")

        server = start("-c", SERVER)
        port = int(line(server))
        rest = [
            start(__file__, "--others", nodes, "--port", port, "--part", part)
            for part in range(PARTS)
        ]
        packing_s = max(json.loads(line(part))["packing_s"] for part in rest)
        first = start(
            *(__file__, "--claimant", nodes, "--port", port),
            *("--server", server.pid, "--idle", idle_s),
        )
        said = [line(part) for part in rest]
        print(said[0], file=first.stdin, flush=True)
        found: dict[str, Any] = json.loads(line(first))
        heard_at = max(json.loads(line(part))["heard_at"] for part in rest)
        return {**found, "packing_s": packing_s, "heard_at": heard_at}


def main() -> None:
    """Print the figures of all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--others", type=int)
    parser.add_argument("--part", type=int)
    parser.add_argument("--claimant", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--server", type=int)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds without an incident")
    parser.add_argument("--nodes", type=int, nargs="*", choices=SIZES, default=[*SIZES])
    parser.add_argument("--inside", action="store_true", help="not in another namespace")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if given.others:
        asyncio.run(others(given.others, given.port, given.part))
    elif given.claimant:
        asyncio.run(claimant(given.claimant, given.port, given.server, given.idle))
    elif os.geteuid() == 0 and not given.inside:
        script = 'ip link set lo up && exec "$@"'
        command = ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, *sys.argv]
        os.execvp(command[0], [*command, "--inside"])  # noqa: S606 (ourselves)
    else:
        print(HEADER)
        for nodes in given.nodes:
            one = measure(nodes, given.idle)
            heard_s = one["heard_at"] - one["published_at"]
            print(
                f"{nodes:5d} {nodes * RANKS:6d} {one['light_s']:8.2f} {one['full_s']:7.2f} "
                f"{one['total_s']:18.2f} {one['cpu_s']:10.2f} {heard_s:12.2f} "
                f"{one['kib_a_node']:11.1f} {one['max_mib']:13.0f} "
                f"{one['packing_s'] * 1000:18.1f} {one['idle_bytes']:10d} "
                f"{one['comparing_s']:12.2f} {one['comparing_cpu_s']:10.2f} "
                f"{one['comparing_kib']:11.1f}"
            )


if __name__ == "__main__":
    main()
