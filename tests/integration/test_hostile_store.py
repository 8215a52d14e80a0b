"""Whatever a stranger puts into the store costs little memory and little time.

Each value is the worst of its sort that was thought of, in a job of two ranks; random
values come on top. The peak is of Python's own objects (tracemalloc).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import sys
import tracemalloc
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from test_exchange import Server, of_torch, serving

from hangwatch.model import codec
from hangwatch.model.codec import CodecError
from hangwatch.watchdog.peers import rounds
from hangwatch.watchdog.peers import store as store_module
from hangwatch.watchdog.peers.exchange import Allowance
from hangwatch.watchdog.peers.messages import (
    MAX_BLOB_BYTES,
    MAX_MESSAGE_BYTES,
    Groups,
    Library,
    Node,
    Room,
    complete,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
PEAK = 48 * MIB
"""Also of what is read at once of the store, with room: the limits allow half of it."""
MOST_CALLS = 4_000_000
"""Of functions, in Python and in C; twice what the dearest answer takes."""
WORLD = 2
NODE = Node("node1:run", "node1", (1,))


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with serving() as found:
        yield found


def cheap(act: Callable[[], object], most: int = PEAK) -> None:
    """Hold that something costs little; that it is refused is as good."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    tracemalloc.start()
    sys.setprofile(count)
    try:
        act()
    except CodecError:
        pass
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < most, f"{peak >> 20} MiB"
    assert calls < MOST_CALLS


def answer(ranks: object = (), **fields: object) -> bytes:
    """An answer of a node with these fields, as it lies in the store."""
    plain = {"answer": {"node": NODE.node, **fields}, "ranks": ranks}
    return zlib.compress(orjson.dumps(plain), 1)


def inside(filling: bytes, size: int) -> bytes:
    """JSON of an answer in which something comes again and again, compressed."""
    middle = (filling * (size // len(filling))).rstrip(b",")
    return zlib.compress(b'{"answer":{"node":"node1:run"},"ranks":[' + middle + b"]}", 1)


GROUP = {"runs": [[0, 2, 1]], "desc": "d"}
OP = {"group": 0, "op": "a", "wire": "a", "seq": 1, "p2p": False, "state": "done"}
RANK: dict[str, Any] = {"rank": 1, "node": "n", "pid": 1, "phase": "running"}
RANK["process"] = {"alive": True}
HOSTILE: dict[str, Callable[[], bytes]] = {
    "lists": lambda: inside(b"[],", 16 * MIB),
    "objects": lambda: inside(b"{},", 16 * MIB),
    "numbers": lambda: inside(b"1234567,", 16 * MIB),
    "texts": lambda: inside(b'"a",', 16 * MIB),
    "deep": lambda: inside(b"[" * 900 + b"]" * 900 + b",", 8 * MIB),
    "one text": lambda: inside(b'"' + b"a" * (15 * MIB) + b'",', 15 * MIB),
    "ranks": lambda: answer([RANK] * 90_000),
    "a rank that is a list": lambda: answer([[[0]] * 5000]),
    "calls": lambda: answer([{**RANK, "ops": [OP] * 90_000}], groups=[GROUP]),
    "a huge group": lambda: answer(groups=[{"runs": [[0, 1 << 60, 0]], "desc": ""}]),
    "huge groups that take each other back": lambda: answer(
        groups=[{"runs": [[0, 1 << 40, 1], [0, -(1 << 40), 1]], "desc": ""}]
    ),
    "many groups": lambda: answer(
        groups=[{"runs": [[0, 1 << 19, 0]], "desc": str(n)} for n in range(1000)]
    ),
    "many small groups": lambda: answer(
        groups=[{"runs": [[0, 1, 1]] * 2, "desc": str(n)} for n in range(90_000)]
    ),
    "numbers that are none": lambda: answer([{**RANK, "pid": [0] * 90_000}]),
    "sources": lambda: answer(sources={f"/{n}": "0" * 24 for n in range(9_000)}),
    "children": lambda: answer([{**RANK, "children": [{"pid": 1}] * 90_000}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_costs_little_whatever_it_holds(name: str) -> None:
    data = HOSTILE[name]()
    assert len(data) <= MAX_MESSAGE_BYTES
    cheap(lambda: unpack(data, NODE, WORLD, {}))


def test_answers_cost_little_together() -> None:
    node = Node("node1:run", "node1", tuple(range(64)))
    groups, room = Groups(), Room.of(64)

    sent = []
    for number in range(64):
        fields = {"groups": [{"runs": [[0, 64, 1]], "desc": f"{number}-{n}"} for n in range(99)]}
        sent.append(answer([{**RANK, "ops": [OP] * 5000}], **fields))

    def all_of_them() -> None:
        kept = []
        for data in sent:
            with suppress(CodecError):
                kept.append(unpack(data, node, 64, groups, room))
        assert 0 < len(kept) < len(sent)

    cheap(all_of_them, 96 * MIB)


def test_one_file_that_is_named_often_is_held_once() -> None:
    text = codec.dumps("x" * (MAX_BLOB_BYTES - 100))
    library = Library()
    name = _name(text)
    library.add({name: text})
    found = unpack(answer(sources={f"/{n}": name for n in range(64)}), NODE, WORLD, {})
    cheap(lambda: complete(found, library))


@pytest.mark.parametrize("filling", [b"[],", b"{},", b'{"file":"","line":1,"function":""},'])
def test_a_stack_costs_little_whatever_it_holds(filling: bytes) -> None:
    data = b"[" + (filling * (MAX_BLOB_BYTES // len(filling) - 1)).rstrip(b",") + b"]"
    library = Library()
    library.add({_name(data): data})
    cheap(lambda: library.frames(_name(data)))
    cheap(lambda: library.text(_name(data)))


def test_random_values_cost_little_and_are_taken_or_refused() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 (shown where it fails)
    chance = random.Random(seed)  # noqa: S311 (no secret)
    good = orjson.loads(zlib.decompress(answer([RANK], groups=[GROUP])))

    def random_value(depth: int) -> Any:
        kinds: list[Callable[[], Any]] = [
            lambda: chance.choice([None, True, -1, 0, 1 << 62, 1e300, "", "x" * 5000]),
            lambda: [random_value(depth - 1) for _ in range(chance.choice([0, 1, 3, 40]))],
            lambda: {str(chance.random()): random_value(depth - 1) for _ in range(3)},
            lambda: [[0, chance.choice([1 << 62, 5, -5]), 1]] * chance.choice([1, 3000]),
        ]
        return chance.choice(kinds if depth else kinds[:1])()

    def mutated(value: Any) -> Any:
        if chance.random() < 0.15:
            return random_value(2)
        if isinstance(value, dict):
            return {key: mutated(item) for key, item in value.items()}
        if isinstance(value, list):
            return [mutated(item) for item in value] * chance.choice([1, 1, 2, 20])
        return value

    sent = [zlib.compress(orjson.dumps(mutated(good)), 1) for _ in range(100)]

    def all_of_them() -> None:
        for data in sent:
            with suppress(CodecError):
                unpack(data, NODE, WORLD, {})

    cheap(all_of_them)


def below(server: Server, name: str) -> Server:
    return Server(server.process, server.port, f"hangwatch/{name}/2")


def ask(server: Server, act: Callable[[store_module.Store], Any]) -> None:
    async def run() -> None:
        store = await store_module.connect("127.0.0.1", server.port, server.prefix)
        try:
            await act(store)
        finally:
            store.close()

    cheap(lambda: asyncio.run(run()))


def test_a_counter_that_anybody_may_set_says_not_how_many_nodes_there_are(shared: Server) -> None:
    server = below(shared, "counter")
    store = of_torch(server)
    store.set("node/1", codec.dumps(NODE))
    store.add("joined", 1 << 40)

    async def act(store: store_module.Store) -> None:
        assert await rounds.known_nodes(store, WORLD) == (NODE,)

    ask(server, act)


def test_nodes_that_are_no_nodes_cost_little(shared: Server) -> None:
    server = below(shared, "nodes")
    store = of_torch(server)
    for number in range(1, 9):
        store.set(f"node/{number}", b'{"node":"a","host":"b","ranks":[' + b"0," * MIB + b"0]}")
    store.set("roster", zlib.compress(b"[" + b"{}," * (4 * MIB) + b"{}]", 1))
    store.add("joined", 8)

    async def act(store: store_module.Store) -> None:
        assert await rounds.known_nodes(store, WORLD) == ()
        assert await rounds.roster(store, WORLD) == ()

    ask(server, act)


def test_large_blobs_are_passed_over(shared: Server) -> None:
    server = below(shared, "blobs")
    store = of_torch(server)
    names = [f"{number:024x}" for number in range(20)]
    for name in names:
        store.set(f"blob/{name}", bytes(2 * MIB))
    refs = [{"name": "t", "tid": 1, "active": True, "owns_gil": False, "frames": n} for n in names]
    store.set(f"answer/1/{NODE.node}", answer([RANK], threads={"1": refs}))

    async def act(store: store_module.Store) -> None:
        found = await rounds.gather(store, 1, {NODE: 5.0}, (NODE,), WORLD)
        (local,) = found.others
        assert local.ranks[0].threads is not None
        assert {thread.frames for thread in local.ranks[0].threads} == {()}

    ask(server, act)


def test_a_verdict_that_says_too_much_is_not_read(shared: Server) -> None:
    server = below(shared, "verdict")
    store = of_torch(server)
    verdict: dict[str, Any] = {
        "state": "hang",
        "kind": None,
        "reason": "unknown",
        "certainty": "possible",
    }
    too_much: list[dict[str, Any]] = [
        {"headline": "x" * 100_000},
        {"culprits": [5]},
        {"victims": [-1]},
    ]
    for number, more in enumerate(too_much, start=1):
        published = {"node": "n", "verdicts": [{**verdict, **more}]}
        store.set(f"verdict/{number}", orjson.dumps(published))

    async def act(store: store_module.Store) -> None:
        for number in (1, 2, 3):
            with pytest.raises(CodecError):
                await rounds.await_verdict(store, number, 5.0, WORLD)

    ask(server, act)


def test_what_others_ask_for_has_an_end() -> None:
    now = [0.0]
    allowance = Allowance(3, 10.0, lambda: now[0])
    assert [allowance.take() for _ in range(5)] == [True, True, True, False, False]
    now[0] = 19.0
    assert [allowance.take() for _ in range(2)] == [True, False]


def _name(data: bytes) -> str:
    """What a blob is called."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()
