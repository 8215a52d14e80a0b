"""Watchdogs of two nodes that talk through a real TCPStore."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from torch.distributed import PrefixStore, TCPStore
from waiting import BOUND_S, within

from hangwatch.console import News
from hangwatch.model import codec
from hangwatch.model.kinds import Certainty, Kind, Phase, Reason, State
from hangwatch.model.snapshot import Child, Frame, ProcessState, RankSnapshot, ThreadStack
from hangwatch.model.verdict import Verdict
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers import rounds
from hangwatch.watchdog.peers import store as store_module
from hangwatch.watchdog.peers.exchange import Exchange
from hangwatch.watchdog.peers.messages import Gathered, Incident, Local, Node, Published

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
LEADER = """
import socket, sys
from torch.distributed import TCPStore
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
print(port, flush=True)
TCPStore("127.0.0.1", port, world_size=2, is_master=True, wait_for_workers=True)
print("everybody is here", flush=True)
sys.stdin.read()
"""
WORKER = """
import sys
from torch.distributed import TCPStore
TCPStore("127.0.0.1", int(sys.argv[1]), world_size=2, is_master=False, wait_for_workers=True)
"""


@dataclass
class Server:
    """A process with a store, and where in it a test has its keys."""

    process: subprocess.Popen[str]
    port: int
    prefix: str = "hangwatch/job/0"


@contextmanager
def serving(code: str = SERVER) -> Iterator[Server]:
    with subprocess.Popen(  # noqa: S603 (our own Python)
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield Server(process, int(process.stdout.readline()))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def server(shared: Server) -> Server:
    return replace(shared, prefix=f"hangwatch/{uuid.uuid4()}/0")


def of_torch(server: Server) -> PrefixStore:
    """The keys of a test as torch sees them."""
    tcp = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    return PrefixStore(server.prefix, tcp)


@dataclass
class Watchdog:
    """One node with one rank."""

    number: int
    tmp_path: Path
    asked: list[bool] = field(default_factory=list)
    heard: asyncio.Queue[Published] = field(default_factory=asyncio.Queue)
    before_answer: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self.said = self.tmp_path / f"stderr-{self.number}"
        fd = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self.news = News(fd)
        node = Node(f"node{self.number}:run", f"node{self.number}", (self.number,))
        self.exchange = Exchange(node, self.news, self.answer, self.heard.put_nowait)

    def local(self, *, full: bool) -> Local:
        frames = (Frame("/job/train.py", 3, "step"), Frame("/job/train.py", 9, "<module>"))
        thread = ThreadStack("MainThread", 7, active=False, owns_gil=True, frames=frames)
        child = Child(8, "python", ProcessState(alive=True), (thread,))
        rank = RankSnapshot(
            rank=self.number,
            node=f"node{self.number}",
            pid=100 + self.number,
            phase=Phase.RUNNING,
            process=ProcessState(alive=True, state="S"),
            threads=(thread,) if full else None,
            children=(child,) if full else (),
        )
        return Local((rank,), {"/job/train.py": "import torch\n"} if full else {})

    async def answer(self, full: bool) -> Local:  # noqa: FBT001 (the exchange's callback)
        self.asked.append(full)
        if self.before_answer is not None:
            await self.before_answer()
        return self.local(full=full)


def verdict() -> Verdict:
    return Verdict(
        State.HANG, Kind.DIED, Reason.SIGNAL, Certainty.PROVED, culprits=(1,), headline="It died."
    )


async def judged(watchdog: Watchdog) -> Gathered:
    """Ask, and conclude if the incident is its own."""
    gathered = await watchdog.exchange.ask(full=False)
    if gathered.owner:
        await watchdog.exchange.publish(gathered.round, Published("node", ()))
    return gathered


def with_two(
    server: Server,
    tmp_path: Path,
    act: Callable[[Watchdog, Watchdog], Awaitable[None]],
) -> tuple[Watchdog, Watchdog]:
    """Two watchdogs that have joined do something, and leave."""

    async def run() -> tuple[Watchdog, Watchdog]:
        pair = Watchdog(0, tmp_path), Watchdog(1, tmp_path)
        try:
            for one in pair:
                await one.exchange.join("127.0.0.1", server.port, server.prefix, 2)
                assert one.exchange.joined, one.news.lost
            await within(act(*pair))
        finally:
            for one in pair:
                await one.exchange.close()
        return pair

    return asyncio.run(run())


def test_the_owner_gets_what_the_other_node_knows(server: Server, tmp_path: Path) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        gathered = await one.exchange.ask(full=True)
        assert gathered.owner
        assert gathered.others == (other.local(full=True),)
        assert gathered.unseen == ()

    one, other = with_two(server, tmp_path, act)
    assert (one.asked, other.asked) == ([], [True])


def test_the_verdict_reaches_the_other_node(server: Server, tmp_path: Path) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        gathered = await one.exchange.ask(full=False)
        sent = Published("node0", (verdict(),), "/reports/incident-001")
        await one.exchange.publish(gathered.round, sent)
        assert await other.heard.get() == sent

    one, _ = with_two(server, tmp_path, act)
    assert one.heard.empty()


def test_incidents_follow_each_other_whoever_claims_them(server: Server, tmp_path: Path) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        for number in range(1, 7):
            owner, listener = (one, other) if number % 2 else (other, one)
            gathered = await owner.exchange.ask(full=False)
            assert (gathered.owner, gathered.round) == (True, number)
            assert gathered.others == (listener.local(full=False),)
            await owner.exchange.publish(gathered.round, Published("node", ()))
            await listener.heard.get()

    with_two(server, tmp_path, act)


def test_of_two_that_ask_at_once_one_owns_the_incident(server: Server, tmp_path: Path) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        found = await asyncio.gather(judged(one), judged(other))
        assert sorted(gathered.owner for gathered in found) == [False, True]
        (owned,) = [gathered for gathered in found if gathered.owner]
        assert len(owned.others) == 1

    with_two(server, tmp_path, act)


def test_two_that_own_an_incident_each_do_not_wait_for_each_other(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "GATHER_S", 10 * BOUND_S)  # it would show

    async def act(one: Watchdog, other: Watchdog) -> None:
        # The next number is taken before the incident of the other has been heard of, which is
        # listened for by then.
        await asyncio.sleep(0)
        other.exchange._next = 2  # noqa: SLF001 (a moment that cannot be brought about)
        found = await asyncio.gather(judged(one), judged(other))
        assert found[1].owner

    with_two(server, tmp_path, act)


def test_who_is_still_to_hear_a_verdict_waits_for_it(server: Server, tmp_path: Path) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        mine = await one.exchange.ask(full=False)
        asking = asyncio.ensure_future(other.exchange.ask(full=False))
        await one.exchange.publish(mine.round, Published("node0", (verdict(),)))
        theirs = await asking
        assert (theirs.owner, theirs.round) == (False, mine.round)
        assert other.heard.qsize() == 1
        assert (await other.exchange.ask(full=False)).owner

    with_two(server, tmp_path, act)


def test_another_takes_over_where_the_owner_of_an_incident_does_not_conclude(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "GATHER_S", 0.5)
    monkeypatch.setattr(timing, "OWNER_CONCLUDES_S", 1.0)

    async def act(one: Watchdog, other: Watchdog) -> None:
        mine = await one.exchange.ask(full=False)
        await one.exchange.close()  # it has been killed
        theirs = await other.exchange.ask(full=False)
        assert (theirs.owner, theirs.round) == (True, mine.round + 1)
        assert [node.node for node in theirs.silent] == ["node0:run"]

    with_two(server, tmp_path, act)


def test_an_owner_that_was_stopped_for_long_leaves_the_verdict_to_who_took_over(
    server: Server, tmp_path: Path
) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        async def take_over() -> None:
            other.before_answer = None
            store = await store_module.connect("127.0.0.1", server.port, server.prefix)
            await rounds.claim(store, 2, Incident("node1:run", "nonce", full=False))
            await rounds.publish(store, 2, Published("node1", (verdict(),)), ())
            store.close()

        other.before_answer = take_over
        found = await one.exchange.ask(full=False)
        assert (found.owner, found.round) == (False, 2)
        assert (await one.heard.get()).node == "node1"

    with_two(server, tmp_path, act)


def test_all_nodes_are_known_also_when_the_store_is_gone(tmp_path: Path) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        while len(one.exchange.roster) < 2:  # noqa: ASYNC110 (it is learnt in the background)
            await asyncio.sleep(0.01)
        lost.process.kill()
        lost.process.wait()
        await one.exchange.ask(full=False)
        for watchdog in (one, other):
            assert [node.ranks for node in watchdog.exchange.roster] == [(0,), (1,)]
            assert {node.address for node in watchdog.exchange.roster} == {"127.0.0.1"}

    with serving() as lost:
        with_two(lost, tmp_path, act)


def test_ranks_of_another_node_are_not_taken_from_an_answer(server: Server, tmp_path: Path) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        other.number = 0  # it answers for the rank of the other node
        gathered = await one.exchange.ask(full=False)
        assert [local.ranks for local in gathered.others] == [()]

    with_two(server, tmp_path, act)


def test_a_node_that_does_not_answer_is_named_with_its_ranks(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "GATHER_S", 0.2)

    async def act(one: Watchdog, other: Watchdog) -> None:
        silence = asyncio.Event()

        async def wait() -> None:
            await silence.wait()

        other.before_answer = wait
        gathered = await one.exchange.ask(full=False)
        silence.set()
        assert gathered.others == ()
        assert gathered.unseen == ("node1 (rank 1) did not answer within 0.2 s",)
        assert [node.ranks for node in gathered.silent] == [(1,)]

    with_two(server, tmp_path, act)


def test_a_node_that_was_silent_is_not_waited_for_as_long_again(
    server: Server, tmp_path: Path
) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        silence = asyncio.Event()

        async def wait() -> None:
            await silence.wait()

        other.before_answer = wait
        assert (await one.exchange.ask(full=False)).silent
        gathered = await one.exchange.ask(full=True)
        assert gathered.unseen == ("node1 (rank 1) did not answer within 2 s",)
        silence.set()
        await one.exchange.publish(gathered.round, Published("node0", ()))
        assert not (await one.exchange.ask(full=False)).silent

    with_two(server, tmp_path, act)


def test_a_watchdog_that_was_started_again_is_asked_once(server: Server, tmp_path: Path) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        await other.exchange.close()
        again = Watchdog(1, tmp_path)
        await again.exchange.join("127.0.0.1", server.port, server.prefix, 2)
        gathered = await one.exchange.ask(full=False)
        assert gathered.others == (again.local(full=False),)
        assert gathered.unseen == ()
        await again.exchange.close()

    with_two(server, tmp_path, act)


def test_a_healthy_job_causes_no_traffic_beyond_joining(server: Server, tmp_path: Path) -> None:
    store = of_torch(server)

    async def act(one: Watchdog, other: Watchdog) -> None:
        assert store.add("joined", 0) == 2
        assert store.add("rounds", 0) == 0
        assert not store.check(["incident/1"])
        assert one.asked == other.asked == []

    with_two(server, tmp_path, act)


def test_stacks_travel_once_by_their_content(server: Server, tmp_path: Path) -> None:
    store = of_torch(server)

    async def act(one: Watchdog, other: Watchdog) -> None:
        await one.exchange.ask(full=True)
        answer = codec.decompress(store.get("answer/1/node1:run"), 1 << 20)
        assert b"/job/train.py" in answer  # the name of the source
        assert b"step" not in answer  # but no frame
        await one.exchange.publish(1, Published("node0", ()))
        await other.heard.get()
        gathered = await one.exchange.ask(full=True)
        assert gathered.others == (other.local(full=True),)

    with_two(server, tmp_path, act)


def test_an_answer_that_makes_no_sense_is_said_to_make_none(server: Server, tmp_path: Path) -> None:
    of_torch(server).set("answer/1/node1:run", b"no answer")

    async def act(one: Watchdog, other: Watchdog) -> None:
        await other.exchange.close()
        gathered = await one.exchange.ask(full=False)
        assert gathered.others == ()
        assert gathered.unseen[0].startswith("the answer of node1 (rank 1) cannot be read")

    with_two(server, tmp_path, act)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_store_that_is_lost_leaves_each_node_on_its_own(
    tmp_path: Path, end: signal.Signals
) -> None:
    async def act(one: Watchdog, _: Watchdog) -> None:
        lost.process.send_signal(end)
        lost.process.wait()
        gathered = await one.exchange.ask(full=False)
        assert gathered.owner
        assert "other nodes were not asked" in gathered.unseen[0]
        assert not one.exchange.joined
        await one.exchange.publish(1, Published("node0", ()))

    with serving() as lost:
        one, _ = with_two(lost, tmp_path, act)
    assert len(one.news.lost) == 1
    assert "only this node's ranks are seen" in one.news.lost[0]
    assert one.said.read_text() == ""  # with -v only


def test_what_no_store_would_answer_is_taken_for_none() -> None:
    closed = asyncio.Event()

    async def zeros(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            writer.write(bytes(64))
        writer.close()
        await writer.wait_closed()
        closed.set()

    async def claim() -> None:
        async with await asyncio.start_server(zeros, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            store = await store_module.connect("127.0.0.1", port, "")
            with pytest.raises(store_module.StoreLostError, match="no sense"):
                await rounds.claim(store, 1, Incident("node0", "token", full=False))
            store.close()
            await closed.wait()

    asyncio.run(claim())


def test_a_store_that_is_not_there_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "JOIN_S", 1.0)

    async def act() -> Watchdog:
        one = Watchdog(0, tmp_path)
        await one.exchange.join("127.0.0.1", 1, "hangwatch/job/0", 2)
        assert not one.exchange.joined
        await one.exchange.close()
        return one

    assert "cannot be asked" in asyncio.run(act()).news.lost[0]


def test_a_watchdog_is_not_counted_among_the_workers_of_the_job(tmp_path: Path) -> None:
    with serving(LEADER) as leader:

        async def act() -> None:
            one = Watchdog(0, tmp_path)
            for _ in range(100):
                await one.exchange.join("127.0.0.1", leader.port, leader.prefix, 2)
                if one.exchange.joined:
                    break
            assert one.exchange.joined, one.news.lost
            await one.exchange.ask(full=False)
            await one.exchange.close()

        asyncio.run(act())
        assert leader.process.poll() is None
        assert leader.process.stdout is not None
        subprocess.run([sys.executable, "-c", WORKER, str(leader.port)], check=True)  # noqa: S603 (our own Python)
        assert leader.process.stdout.readline() == "everybody is here\n"


def test_two_questions_of_one_node_do_not_take_each_other_over(
    server: Server, tmp_path: Path
) -> None:
    async def act(one: Watchdog, other: Watchdog) -> None:
        async def slowly() -> None:
            await asyncio.sleep(0.5)

        other.before_answer = slowly

        async def conclude(*, full: bool) -> Gathered:
            gathered = await one.exchange.ask(full=full)
            await one.exchange.publish(gathered.round, Published("node0", (verdict(),)))
            return gathered

        found = await asyncio.gather(conclude(full=False), conclude(full=True))
        assert all(gathered.owner and gathered.others for gathered in found), found
        assert [len((await other.heard.get()).verdicts) for _ in found] == [1, 1]

    one, other = with_two(server, tmp_path, act)
    assert (one.asked, other.asked) == ([], [False, True])
