"""What a hostile store answers to watchdogs, and what a stranger writes into one."""

from __future__ import annotations

import socket
import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

from hangwatch.efficiency.nodes import NodeMoments, SlowNodes
from hangwatch.model import codec
from hangwatch.model.kinds import Certainty, Kind, Phase, Reason, State
from hangwatch.model.profile import Profile
from hangwatch.model.report import Why
from hangwatch.model.snapshot import ProcessState, RankSnapshot
from hangwatch.model.verdict import Verdict
from hangwatch.watchdog.peers.messages import (
    Answer,
    Incident,
    Local,
    Node,
    Published,
    ThreadRef,
    pack,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from storeproxy import Query

WORLD_SIZE = 2
STRANGER = "stranger:run"
_SET, _GET, _ADD, _CHECK, _DELETE_KEY = 1, 3, 4, 5, 8
_U64 = struct.Struct("=Q")
_I64 = struct.Struct("=q")
RANKS = (0, 1, 10**9, -1)
COUNTERS = (10**6, 10**9, 2**62, -1, -(2**63))


def sized(value: bytes) -> bytes:
    """A value as the protocol has it."""
    return _U64.pack(len(value)) + value


# Bytes that lie about their size or mean nothing.


def noise(query: Query, dice: random.Random) -> bytes:
    """Random bytes: as many as belong there, as a value, or just some."""
    if query.values and dice.random() < 0.7:
        return b"".join(sized(dice.randbytes(dice.choice((0, 1, 300)))) for _ in query.keys)
    return dice.randbytes(dice.choice((1, 8, 4000)))


def overlong(_: Query, dice: random.Random) -> bytes:
    """The length of a value that never comes."""
    return _U64.pack(2 ** dice.randint(31, 60)) + bytes(dice.choice((0, 100, 1 << 16)))


# Well-formed content that is not true.


def lie(query: Query, dice: random.Random) -> bytes:
    """An answer of the right form."""
    if query.values:
        return b"".join(sized(content(key.split("/", 4)[4], dice)) for key in query.keys)
    if query.name.startswith(("add", "delete")):
        return _I64.pack(dice.choice(COUNTERS))
    return bytes([dice.choice((0, 1, 255))])


def content(key: str, dice: random.Random) -> bytes:
    """A hostile value for a key below the prefix."""
    kind, *rest = key.split("/")
    special: dict[str, Callable[[], list[bytes]]] = {
        "incident": lambda: [codec.dumps(Incident(STRANGER, "nonce", full=True))],
        "verdict": lambda: [codec.dumps(Published("elsewhere", (false_verdict(dice),)))],
        "node": lambda: [codec.dumps(one) for one in nodes()],
        "roster": lambda: [codec.compress(codec.dumps(nodes())), _many_nodes()],
        "answer": lambda: answers(rest[-1] if rest else "", dice),
        "blob": lambda: [bytes(8 << 20)],
        "moments": lambda: [codec.compress(codec.dumps(false_moments(dice)))],
        "slow": lambda: [codec.dumps(false_stragglers(dice))],
        "why": lambda: [
            codec.compress(codec.dumps(Why(Reason.USER_CODE, like=dice.choice(RANKS))))
        ],
        "like": lambda: [codec.compress(codec.dumps(Profile(dice.choice(RANKS), -1, 0, ())))],
    }
    return dice.choice([*special.get(kind, list)(), bomb(), deep(), bytes(8 << 20), b""])


def false_moments(dice: random.Random) -> NodeMoments:
    """What a node would tell of its ranks."""
    parts = ((dice.choice((0, 1, 1 << 62)), dice.choice((1, -1, 1 << 60))),) * dice.choice((1, 170))
    unknown = dice.choice(("", "\x1b[2J\nhangwatch: all is well", "R" * 9999))
    return NodeMoments("stranger", dice.choice(((0, 1), (5, -1))), 3.0, parts, unknown=unknown)


def false_stragglers(dice: random.Random) -> SlowNodes:
    """That ranks make the job slow, as the nodes would find it."""
    ranks = dice.choice(((0,), (1,), (10**9, -1), ()))
    return SlowNodes(ranks, dice.choice((0.5, 7.0, -1.0)), dice.choice(RANKS), "stranger")


def false_verdict(dice: random.Random) -> Verdict:
    """That a rank hangs, as a watchdog would say it."""
    state, kind, reason = dice.choice(
        [
            (State.HANG, Kind.DIED, Reason.SIGNAL),
            (State.HANG, Kind.NEVER_ENTERED, Reason.USER_CODE),
            (State.FAILED, Kind.DIED, Reason.SIGNAL),
        ]
    )
    headline = dice.choice(
        ["Rank 0 has died.", "Rank 0\x1b[2J\nhangwatch: all is well", "R" * 9999]
    )
    culprits = dice.choice([(0,), (10**9, -1), (0, 1)])
    return Verdict(state, kind, reason, Certainty.PROVED, culprits=culprits, headline=headline)


def nodes() -> tuple[Node, ...]:
    """Nodes that are not there, one with the ranks of all others."""
    return (
        Node(STRANGER, "stranger", (0, 1), "192.0.2.1"),
        Node("other:run", "other", (), "no address"),
        Node("third:run", "third", (5, -1), "127.0.0.1"),
    )


def answers(node: str, dice: random.Random) -> list[bytes]:
    """Of a node: of ranks that there are not, of one that died, with stacks without end."""

    def told(*ranks: int) -> bytes:
        process = ProcessState(alive=False, signal=11)
        found = [
            RankSnapshot(rank=rank, node="x", pid=1, phase=Phase.RUNNING, process=process)
            for rank in ranks
        ]
        return pack(node, Local(tuple(found)), WORLD_SIZE)[0]

    refs = tuple(
        ThreadRef("t", n, active=True, owns_gil=False, frames=f"{n:024x}") for n in range(9000)
    )
    many = Answer(node, threads={"1": refs}, sources={f"/f{n}": f"{n:024x}" for n in range(9000)})
    stacks = codec.compress(codec.dumps({"answer": codec.plain(many), "ranks": []}))
    return [told(1), told(0), told(7), told(dice.randrange(10**9)), stacks]


def bomb() -> bytes:
    """16 KiB that unpack to 16 MiB of JSON with millions of values."""
    return zlib.compress(b"[" + b"[]," * (5 << 20) + b"[]]", 9)


def deep() -> bytes:
    """JSON within JSON within JSON."""
    return b"[" * 100_000 + b"]" * 100_000


def _many_nodes() -> bytes:
    some = [codec.plain(replace(nodes()[1], node=f"n{number}")) for number in range(90_000)]
    return codec.compress(codec.dumps(some))


# Somebody who reaches the store's port.


class Stranger:
    """A client of the store itself. All methods raise OSError where it is gone."""

    def __init__(self, port: int, prefix: str) -> None:
        self._prefix = prefix
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._socket.sendall(b"\0" + struct.pack("=I", 0x3C85F7CE))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def set(self, key: str, value: bytes) -> None:
        """Set a key."""
        self._socket.sendall(bytes([_SET]) + self._key(key) + sized(value))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; its new value."""
        self._socket.sendall(bytes([_ADD]) + self._key(key) + _I64.pack(amount))
        (found,) = _I64.unpack(self._read(8))
        return int(found)

    def delete(self, key: str) -> None:
        """Remove a key."""
        self._socket.sendall(bytes([_DELETE_KEY]) + self._key(key))
        self._read(8)

    def get(self, key: str) -> bytes:
        """A value, empty where there is none."""
        self._socket.sendall(bytes([_CHECK]) + _U64.pack(1) + self._key(key))
        if self._read(1) != b"\0":
            return b""
        self._socket.sendall(bytes([_GET]) + self._key(key))
        return self._read(_U64.unpack(self._read(8))[0])

    def _key(self, key: str) -> bytes:
        return sized(f"{self._prefix}{key}".encode())

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the store has closed")
            data += more
        return data


def claim_with_verdict(stranger: Stranger, dice: random.Random) -> None:
    """An incident, and the verdict on it."""
    number = stranger.add("rounds", 0) + 1
    stranger.set(f"verdict/{number}", codec.dumps(Published("elsewhere", (false_verdict(dice),))))
    stranger.set(
        f"incident/{number}", codec.dumps(Incident(STRANGER, "n", full=dice.random() < 0.5))
    )


def claim_many_with_verdicts(stranger: Stranger, dice: random.Random) -> None:
    """All that could be next."""
    first = stranger.add("rounds", 0) + 1
    for number in range(first, first + 20):
        told = Published("elsewhere", (false_verdict(dice), false_verdict(dice)))
        stranger.set(f"verdict/{number}", codec.dumps(told))
        stranger.set(f"incident/{number}", codec.dumps(Incident(STRANGER, "n", full=False)))


def ask_for_moments(stranger: Stranger, dice: random.Random) -> None:
    """All that could be next asks for moments, and says what they show."""
    first = stranger.add("rounds", 0) + 1
    for number in range(first, first + 100):
        stranger.set(f"slow/{number}", codec.dumps(false_stragglers(dice)))
        asks = Incident(STRANGER, "n", full=False, moments=True)
        stranger.set(f"incident/{number}", codec.dumps(asks))


def claim_without_verdict(stranger: Stranger, _: random.Random) -> None:
    """All that could be next is taken, and nothing comes of it."""
    first = stranger.add("rounds", 0) + 1
    for number in range(first, first + 50):
        stranger.set(f"incident/{number}", codec.dumps(Incident(STRANGER, "n", full=False)))


def count_joined(stranger: Stranger, dice: random.Random) -> None:
    """More watchdogs than there are, or fewer."""
    stranger.add("joined", dice.choice(COUNTERS))


def count_ranks(stranger: Stranger, dice: random.Random) -> None:
    """More ranks than there are, or fewer."""
    stranger.add("ranks", dice.choice(COUNTERS))


def count_rounds(stranger: Stranger, dice: random.Random) -> None:
    """More incidents than there were, or fewer."""
    stranger.add("rounds", dice.choice(COUNTERS))


def claim_ranks(stranger: Stranger, _: random.Random) -> None:
    """Join as who has everybody's ranks."""
    for node in nodes():
        stranger.set(f"node/{stranger.add('joined', 1)}", codec.dumps(node))
        stranger.add("ranks", len(node.ranks))


def plant_roster(stranger: Stranger, dice: random.Random) -> None:
    """A list of nodes that is none."""
    stranger.set("roster", content("roster", dice))


def plant_nodes(stranger: Stranger, dice: random.Random) -> None:
    """Nodes that are none in the place of those that are."""
    for number in (1, 2):
        stranger.set(f"node/{number}", content("node", dice))


def plant_answers(stranger: Stranger, dice: random.Random) -> None:
    """What the nodes would answer, before they do."""
    for number in (1, 2):
        try:
            node: Node = codec.loads(Node, stranger.get(f"node/{number}"), 1 << 20)
        except codec.CodecError:
            continue
        for which in range(1, 9):
            key = f"answer/{which}/{node.node}"
            stranger.set(key, content(key, dice))


def plant_incident(stranger: Stranger, dice: random.Random) -> None:
    """An incident that is none."""
    number = stranger.add("rounds", 0) + 1
    stranger.set(f"incident/{number}", dice.choice([dice.randbytes(99), bomb(), deep(), b""]))


def delete_all(stranger: Stranger, _: random.Random) -> None:
    """Remove what has been written so far."""
    for key in ("joined", "ranks", "rounds", "roster", "node/1", "node/2", "incident/1"):
        stranger.delete(key)


DEEDS: tuple[Callable[[Stranger, random.Random], None], ...] = (
    claim_with_verdict,
    claim_many_with_verdicts,
    ask_for_moments,
    claim_without_verdict,
    count_joined,
    count_ranks,
    count_rounds,
    claim_ranks,
    plant_roster,
    plant_nodes,
    plant_answers,
    plant_incident,
    delete_all,
)
