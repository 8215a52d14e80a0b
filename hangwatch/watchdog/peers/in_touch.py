"""The watchdogs of the other nodes, as far as this one is in touch with them."""

from __future__ import annotations

from dataclasses import dataclass

from hangwatch.watchdog.peers.exchange import Exchange


@dataclass(slots=True)
class Peers:
    """Written by Joining (joining.py) alone; read where the other nodes are asked."""

    exchange: Exchange | None = None
    """None before they are joined, and where all ranks of the job are of this node."""
    store_address: str = ""
    """The IP address of the host that has the job's store, empty while unknown."""

    @property
    def can_be_asked(self) -> bool:
        """Whether there are others, and they are in reach as far as is known."""
        return self.exchange is not None and self.exchange.joined
