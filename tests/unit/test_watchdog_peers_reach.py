"""Which machines are still there, by real connections on this one."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from waiting import in_time

from hangwatch.watchdog import timing
from hangwatch.watchdog.peers.connection import Missing, missing, unreachable
from hangwatch.watchdog.peers.messages import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

GONE = ["127.0.9.1", "127.0.9.2", "127.0.9.3"]
"""Stand for machines that are lost: nothing comes back from their DEAF port."""


@pytest.fixture(scope="module")
def deaf() -> Iterator[int]:
    """A port at which GONE do not even refuse: their queues of connections are full."""
    with ExitStack() as stack:
        first = stack.enter_context(socket.create_server((GONE[0], 0), backlog=0))
        port: int = first.getsockname()[1]
        for address in GONE:
            if address != GONE[0]:
                stack.enter_context(socket.create_server((address, port), backlog=0))
            for _ in range(2):
                client = stack.enter_context(socket.socket())
                client.settimeout(0)
                with suppress(BlockingIOError):
                    client.connect((address, port))
        yield port


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "REACH_S", 0.3)


def node(number: int, address: str) -> Node:
    return Node(f"n{number}:run", f"n{number}", (2 * number, 2 * number + 1), address)


def look(
    own: Node, others: list[Node], silent: list[Node] | None, store: str, port: int
) -> Missing:
    return asyncio.run(missing(own, [own, *others], silent, store, port))


def test_a_machine_that_refuses_is_there_and_so_is_one_that_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert asyncio.run(unreachable(["127.0.0.1"], port)) == set()
    assert asyncio.run(unreachable(["127.0.0.1", "::1"], port)) == set()


def test_what_is_no_address_is_not_asked() -> None:
    assert asyncio.run(unreachable(["", "somewhere.example", "127.0.0.1;ls"])) == set()


def test_those_that_say_nothing_are_asked_at_the_same_time(deaf: int) -> None:
    began = time.monotonic()
    assert asyncio.run(unreachable(["127.0.0.1", *GONE], deaf)) == set(GONE)
    in_time(began, 2.5 * timing.REACH_S)


def test_a_silent_node_whose_machine_is_there_is_not_lost(deaf: int) -> None:
    own, other, gone = node(0, "127.0.0.1"), node(1, "127.0.0.2"), node(2, GONE[0])
    found = look(own, [other, gone], [other, gone], "127.0.0.1", deaf)
    assert (found.lost, found.cut_off) == ((gone,), False)
    assert found.notes == (
        "n2 (ranks 4, 5) cannot be reached any more",
        "n1 (ranks 2, 3) can be reached, and the watchdog there does not answer",
    )


def test_nobody_is_lost_where_a_firewall_hides_even_those_that_answer(deaf: int) -> None:
    own, heard, silent = node(0, "127.0.0.1"), node(1, GONE[0]), node(2, GONE[1])
    found = look(own, [heard, silent], [silent], "127.0.0.1", deaf)
    assert (found.lost, found.cut_off) == ((), False)
    assert "firewall" in found.notes[0]


@pytest.mark.parametrize(
    ("others", "silent", "store", "cut_off"),
    [
        pytest.param(GONE[:1], True, "127.0.0.1", False, id="one other, the store here"),
        pytest.param(GONE[:2], True, "127.0.0.1", True, id="several others, the store here"),
        pytest.param(GONE[:1], False, GONE[0], True, id="one other, and it has the store"),
        pytest.param([GONE[0], "127.0.0.2"], False, GONE[0], False, id="another is there"),
    ],
)
def test_who_reaches_nobody_may_be_cut_off_itself(
    others: list[str],
    silent: bool,  # noqa: FBT001 (a parameter of the test)
    store: str,
    deaf: int,
    cut_off: bool,  # noqa: FBT001
) -> None:
    own = node(0, "127.0.0.1")
    rest = [node(number, address) for number, address in enumerate(others, 1)]
    found = look(own, rest, rest if silent else None, store, deaf)
    assert found.cut_off is cut_off
    assert [one.address for one in found.lost] == [one for one in others if one in GONE]
    assert any("this node (n0) cannot reach any other" in note for note in found.notes) is cut_off


def test_nobody_is_asked_where_all_have_answered(deaf: int) -> None:
    own, other = node(0, "127.0.0.1"), node(1, GONE[0])
    assert look(own, [other], [], "127.0.0.1", deaf) == Missing()
