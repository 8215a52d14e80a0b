"""Reads how ranks meet: the arguments of init_process_group, and the store of the job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hangwatch.agent.inject import rank as ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

_INIT = ("backend", "init_method", "timeout", "world_size", "rank")
"""The first parameters of init_process_group."""
_IN_URL = r"[?&](rank|world_size)=(\d{1,9})(?=&|$)"


def announced(
    args: tuple[Any, ...], kwargs: dict[str, Any], environ: Mapping[str, str]
) -> tuple[int, int]:
    """(rank, world size) by arguments, init_method's URL or environment; -1 if unknown."""
    named = {**dict(zip(_INIT, args, strict=False)), **kwargs}
    in_url = dict(re.findall(_IN_URL, init_method(args, kwargs)))
    launched = ranks.launched_as(environ) or (-1, -1)

    def known(name: str, otherwise: int) -> int:
        given = named.get(name)
        if isinstance(given, int) and given >= 0:
            return given
        return int(in_url.get(name, otherwise))

    return known("rank", launched[0]), known("world_size", launched[1])


def init_method(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the init_method that init_process_group was called with, or empty."""
    url = {**dict(zip(_INIT, args, strict=False)), **kwargs}.get("init_method")
    return url if isinstance(url, str) else ""


def store_address(world: Any, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the job's TCPStore; for other stores, those of the environment."""
    store = world.pg_map[world.default_pg][1]
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None) or environ.get("MASTER_ADDR", "")
    port = getattr(store, "port", None) or ranks.number(environ, "MASTER_PORT", 0)
    return str(host), int(port)
