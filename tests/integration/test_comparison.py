"""The nodes of a job are compared, through a real TCPStore."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from waiting import within

from hangwatch.console import News
from hangwatch.efficiency.nodes import KEPT, NodeMoments, SlowNodes, find_slow
from hangwatch.model import codec
from hangwatch.model.kinds import Reason
from hangwatch.model.profile import Profile, StackSamples
from hangwatch.model.report import Why
from hangwatch.model.snapshot import Frame
from hangwatch.watchdog import timing
from hangwatch.watchdog.peers import rounds
from hangwatch.watchdog.peers.comparison import Comparison, Talk
from hangwatch.watchdog.peers.exchange import Exchange
from hangwatch.watchdog.peers.messages import Incident, Local, Node
from hangwatch.watchdog.peers.store import connect

if importlib.util.find_spec("torch"):
    from test_exchange import of_torch, serving
else:
    pytest.skip("needs torch", allow_module_level=True)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from test_exchange import Server

WAITS, WORKS = (0, 15, 1, 15), (0, 3, 1, 27)


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def server(shared: Server) -> Server:
    return replace(shared, prefix=f"hangwatch/{uuid.uuid4()}/0")


@dataclass
class Watchdog:
    """One node with one rank, of a job of three; that of rank 2 is slow."""

    number: int
    tmp_path: Path
    told: dict[str, Any] = field(default_factory=dict)
    """What it tells otherwise."""
    asked: int = 0
    answered: int = 0
    before_answer: Callable[[], Awaitable[None]] | None = None
    find: Callable[[Sequence[NodeMoments]], SlowNodes] = find_slow
    heard: list[SlowNodes] = field(default_factory=list)
    talk: Talk | None = None
    exchange: Exchange = field(init=False)

    def __post_init__(self) -> None:
        said = self.tmp_path / f"stderr-{self.number}"
        news = News(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC))
        node = Node(f"node{self.number}:run", f"node{self.number}", (self.number,))
        comparison = Comparison(self.tell, self.show, self.take)
        self.exchange = Exchange(node, news, self.answer, lambda _: None, comparison)

    def tell(self) -> NodeMoments:
        self.asked += 1
        part = WORKS if self.number == 2 else WAITS
        made = NodeMoments("what it calls itself", (self.number,), 3.0, (part,) * KEPT)
        return replace(made, **self.told)

    def show(self, told: Sequence[NodeMoments]) -> SlowNodes:
        return self.find(told)

    def take(self, found: SlowNodes, talk: Talk) -> None:
        self.heard.append(found)
        self.talk = talk

    async def answer(self, full: bool) -> Local:  # noqa: ARG002, FBT001 (the exchange's callback)
        self.answered += 1
        if self.before_answer is not None:
            await self.before_answer()
        return Local((), {})


def with_three(
    server: Server, tmp_path: Path, act: Callable[[list[Watchdog]], Awaitable[None]]
) -> list[Watchdog]:
    """Three watchdogs that have joined do something, and leave."""

    async def run() -> list[Watchdog]:
        made = [Watchdog(number, tmp_path) for number in range(3)]
        try:
            for one in made:
                await one.exchange.join("127.0.0.1", server.port, server.prefix, 3)
            await within(act(made))
        finally:
            for one in made:
                await one.exchange.close()
        return made

    return asyncio.run(run())


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds; with_three() bounds it."""
    while not holds():  # noqa: ASYNC110 (bounded)
        await asyncio.sleep(0.02)


async def all_heard(made: list[Watchdog]) -> None:
    await until(lambda: all(one.heard for one in made))


def test_one_asks_and_all_hear_what_all_nodes_show(server: Server, tmp_path: Path) -> None:
    async def act(made: list[Watchdog]) -> None:
        assert await made[0].exchange.compare() == ""
        await all_heard(made)

    made = with_three(server, tmp_path, act)
    assert [one.asked for one in made] == [1, 1, 1]
    (found,) = {found for one in made for found in one.heard}
    assert (found.ranks, found.host) == ((2,), "node2")
    store = of_torch(server)
    assert store.check(["slow/1"])
    assert not any(store.check([f"moments/1/node{number}:run"]) for number in range(3))


def test_of_some_that_ask_at_once_one_asks(server: Server, tmp_path: Path) -> None:
    async def act(made: list[Watchdog]) -> None:
        assert await asyncio.gather(*(one.exchange.compare() for one in made)) == [""] * 3
        await all_heard(made)

    made = with_three(server, tmp_path, act)
    assert [(one.asked, len(one.heard)) for one in made] == [(1, 1)] * 3


async def ask_for_moments(server: Server, number: int) -> None:
    """A node that nobody else knows asks."""
    store = await connect("127.0.0.1", server.port, server.prefix)
    assert await rounds.claim(store, number, Incident("x:run", "n", full=False, moments=True))
    store.close()


def test_an_incident_takes_the_number_after_it(server: Server, tmp_path: Path) -> None:
    async def act(made: list[Watchdog]) -> None:
        await ask_for_moments(server, 1)
        gathered = await made[2].exchange.ask(full=False)
        assert (gathered.owner, gathered.round, gathered.silent) == (True, 2, ())

    made = with_three(server, tmp_path, act)
    assert [one.answered for one in made] == [1, 1, 0]


def test_it_takes_over_no_incident(server: Server, tmp_path: Path) -> None:
    async def act(made: list[Watchdog]) -> None:
        async def ask_meanwhile() -> None:
            await ask_for_moments(server, 2)

        made[1].before_answer = ask_meanwhile
        gathered = await made[0].exchange.ask(full=False)
        assert (gathered.owner, gathered.round, gathered.silent) == (True, 1, ())

    with_three(server, tmp_path, act)


def test_while_there_is_an_incident_nobody_compares(server: Server, tmp_path: Path) -> None:
    async def act(made: list[Watchdog]) -> None:
        await made[0].exchange.ask(full=False)
        assert await made[1].exchange.compare() == ""

    made = with_three(server, tmp_path, act)
    assert [one.asked for one in made] == [0, 0, 0]


def test_a_node_that_does_not_answer(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "GATHER_S", 0.5)

    async def act(made: list[Watchdog]) -> None:
        await made[1].exchange.close()
        await made[0].exchange.compare()
        await all_heard([made[0], made[2]])

    made = with_three(server, tmp_path, act)
    assert made[2].heard == [SlowNodes(unknown="node1 (rank 1) did not answer within 0.5 s")]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"unknown": "some ranks have ended"}, "on node1, some ranks have ended"),
        ({"ranks": (), "parts": (), "unknown": "no moments"}, "on node1, no moments"),
        ({"ranks": (0, 2)}, "the answer of node1 (rank 1) cannot be read: it makes no sense"),
        (
            {"parts": ((2, 15),)},
            "the answer of node1 (rank 1) cannot be read: it makes no sense",
        ),
        ({"groups": (0,)}, "the answer of node1 (rank 1) cannot be read: it makes no sense"),
        ({"groups": (2,)}, "the answer of node1 (rank 1) cannot be read: it makes no sense"),
        (
            {"peers": ((1, 0),) * 1000},
            "the answer of node1 (rank 1) cannot be read: it makes no sense",
        ),
        ({"part_s": -1.0}, "the answer of node1 (rank 1) cannot be read: it makes no sense"),
    ],
)
def test_what_a_node_tells_is_checked(
    server: Server, tmp_path: Path, told: dict[str, Any], why: str
) -> None:
    async def act(made: list[Watchdog]) -> None:
        made[1].told = told
        await made[0].exchange.compare()
        await all_heard(made)

    made = with_three(server, tmp_path, act)
    assert [one.heard for one in made] == [[SlowNodes(unknown=why)]] * 3


@pytest.mark.parametrize(
    "found", [SlowNodes((3,), 0.5), SlowNodes((1,), 7.0), SlowNodes((1,), 0.5, since_s=-1.0)]
)
def test_what_makes_no_sense_is_not_heard(server: Server, tmp_path: Path, found: SlowNodes) -> None:
    async def act(made: list[Watchdog]) -> None:
        made[0].find = lambda _: found
        await made[0].exchange.compare()
        await made[1].exchange.compare()
        await all_heard(made)

    made = with_three(server, tmp_path, act)
    assert [one.ranks for one in made[2].heard] == [(2,)]


def test_without_a_store_it_is_said_why_not(tmp_path: Path) -> None:
    async def run() -> str:
        return await Watchdog(0, tmp_path).exchange.compare()

    assert "the other nodes cannot be asked" in asyncio.run(run())


def test_they_talk_about_what_was_found(server: Server, tmp_path: Path) -> None:
    frames = (Frame("/train.py", 3, "step"),)
    profile = Profile(1, 7, 7, (StackSamples(7, 7, "MainThread", frames, 200),))
    why = Why(Reason.USER_CODE, share=0.5, like=1)

    async def act(made: list[Watchdog]) -> None:
        await made[0].exchange.compare()
        await all_heard(made)
        one, other = made[1].talk, made[2].talk
        assert one is not None
        assert other is not None
        heard = asyncio.ensure_future(other.hear("like", Profile, 0.0, 20.0))
        await one.say("like", profile)
        assert await heard == profile
        await other.say("why", why)
        assert await one.hear("why", Why, 0.0, 20.0) == why
        await other.say("why", replace(why, missing="x" * 20_000))
        assert await one.hear("why", Why, 0.0, 20.0) is None
        of_torch(server).set("why/1", codec.compress(b"{}x"))
        assert await one.hear("why", Why, 0.0, 20.0) is None
        assert await one.hear("nothing", Why, 0.0, 0.1) is None
        await made[1].exchange.close()
        await one.say("like", profile)
        assert await one.hear("like", Profile, 0.0, 1.0) is None

    with_three(server, tmp_path, act)
