"""Our client of torch's TCPStore against the real server, and against torch's own client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest
from torch.distributed import PrefixStore, TCPStore

from hangwatch.watchdog import timing
from hangwatch.watchdog.peers.store import Store, StoreLostError, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

PREFIX = "hangwatch/job/0"
SERVER = """
import sys
from torch.distributed import TCPStore
host, libuv = sys.argv[1], sys.argv[2] == "libuv"
store = TCPStore(host, 0, is_master=True, wait_for_workers=False, use_libuv=libuv)
print(store.port, flush=True)
sys.stdin.read()
"""


@contextmanager
def serving(host: str, server: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with subprocess.Popen(  # noqa: S603 (our own Python)
        [sys.executable, "-c", SERVER, host, server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(
    scope="module",
    params=[("127.0.0.1", "libuv"), ("127.0.0.1", "legacy"), ("::1", "libuv")],
    ids=["libuv", "legacy", "ipv6"],
)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    host, server = request.param
    with serving(host, server) as (_, port):
        yield host, port


def torch_store(place: tuple[str, int]) -> PrefixStore:
    tcp = TCPStore(*place, is_master=False, wait_for_workers=False)
    return PrefixStore(PREFIX, tcp)


def with_store(place: tuple[str, int], act: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await connect(*place, PREFIX)
        try:
            await asyncio.wait_for(act(store), 60)
        finally:
            store.close()

    asyncio.run(run())


def test_what_we_set_torch_gets_and_the_other_way_round(place: tuple[str, int]) -> None:
    theirs = torch_store(place)
    theirs.set("theirs", b"\0value\xff")
    large = bytes(range(256)) * 4096

    async def act(ours: Store) -> None:
        await ours.set("ours", b"")
        await ours.set("large", large)
        assert await ours.get("theirs") == b"\0value\xff"
        assert await ours.get("nothing") is None
        assert await ours.multi_get(["theirs", "large", "ours"]) == [b"\0value\xff", large, b""]
        assert await ours.check(["ours", "theirs"])
        assert not await ours.check(["ours", "nothing"])
        assert ours.address == place[0]

    with_store(place, act)
    assert theirs.get("large") == large


def test_counters_are_shared_with_torch(place: tuple[str, int]) -> None:
    theirs = torch_store(place)

    async def act(ours: Store) -> None:
        assert await ours.add("count", 3) == 3
        assert theirs.add("count", -5) == -2
        assert await ours.add("count", 0) == -2
        assert await ours.delete_key("count")
        assert not await ours.delete_key("count")

    with_store(place, act)


def test_only_the_first_of_two_claims_is_taken(place: tuple[str, int]) -> None:
    theirs = torch_store(place)

    async def act(ours: Store) -> None:
        assert await ours.compare_set("claim", b"", b"ours") == b"ours"
        assert theirs.compare_set("claim", "", "theirs") == b"ours"
        assert await ours.compare_set("claim", b"ours", b"next") == b"next"
        assert await ours.compare_set("claim", b"ours", b"other") == b"next"

    with_store(place, act)


def test_a_wait_ends_when_the_last_key_is_set(place: tuple[str, int]) -> None:
    async def act(ours: Store) -> None:
        other = await connect(*place, PREFIX)
        waiting = asyncio.ensure_future(ours.wait(["one", "two"], 60))
        await other.set("one", b"1")
        await other.set("two", b"2")
        assert await waiting
        assert await ours.wait(["one"], 60)  # it is there already
        other.close()

    with_store(place, act)


def test_a_wait_that_is_over_leaves_the_connection_usable(place: tuple[str, int]) -> None:
    async def act(ours: Store) -> None:
        for number in range(20):
            assert not await ours.wait(["never"], 0.001)
            assert await ours.add(f"after-{number}", 1) == 1

    with_store(place, act)


def test_keys_that_are_set_when_a_wait_is_given_up_mix_nothing_up(place: tuple[str, int]) -> None:
    async def act(ours: Store) -> None:
        other = await connect(*place, PREFIX)
        for number in range(200):
            waiting = asyncio.ensure_future(ours.wait([f"race-{number}"], 0.002))
            await asyncio.sleep(0.001 + number % 10 / 5000)
            await other.set(f"race-{number}", b"")
            await waiting
            assert await ours.add(f"counted-{number}", number + 1) == number + 1
        other.close()

    with_store(place, act)


def test_requests_of_several_tasks_are_answered_to_who_asked(place: tuple[str, int]) -> None:
    async def act(ours: Store) -> None:
        async def ask(number: int) -> None:
            await ours.set(f"task-{number}", str(number).encode())
            assert await ours.get(f"task-{number}") == str(number).encode()

        await asyncio.gather(*(ask(number) for number in range(100)))

    with_store(place, act)


def test_a_request_that_is_given_up_ends_the_connection(place: tuple[str, int]) -> None:
    async def act(ours: Store) -> None:
        waiting = asyncio.ensure_future(ours.wait(["never"], 60))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(StoreLostError):
            await ours.add("after", 1)

    with_store(place, act)


def test_a_server_that_is_killed_is_lost() -> None:
    async def act(ours: Store) -> None:
        waiting = asyncio.ensure_future(ours.wait(["never"], 60))
        await asyncio.sleep(0.05)
        process.kill()
        with pytest.raises(StoreLostError, match="the store is gone"):
            await waiting

    with serving("127.0.0.1", "libuv") as (process, port):
        with_store(("127.0.0.1", port), act)


@asynccontextmanager
async def pretending(says: bytes) -> AsyncIterator[int]:
    """A server that says something and then nothing more; its port."""
    over = asyncio.Event()
    served: set[asyncio.Task[None] | None] = set()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        writer.write(says)
        await over.wait()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over.set()
        await asyncio.gather(*(task for task in served if task), return_exceptions=True)
        server.close()


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b"", b"\0"])
def test_what_is_no_store_is_lost_after_a_while(
    says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "STORE_CALL_S", 0.5)

    async def act() -> None:
        async with pretending(says) as port:
            store = await connect("127.0.0.1", port, PREFIX)
            with pytest.raises(StoreLostError):
                await store.multi_get(["key"])

    asyncio.run(act())
