"""Formats ranks, nodes, signals and lines of code for people."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from hangwatch.model.calls import Site

MAX_SPANS = 8
MAX_NODES = 4


def ranges(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of ranks without a gap."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def spans(ranks: Iterable[int]) -> list[str]:
    """Sorted ranks, three and more in a row as a range: ``["0", "1", "3-7"]``."""
    parts: list[str] = []
    for first, last in ranges(ranks):
        if last - first > 1:
            parts.append(f"{first}-{last}")
        else:
            parts.extend(map(str, range(first, last + 1)))
    return parts


def fold_ranks(ranks: Iterable[int]) -> str:
    """``0, 1, 3-7``."""
    return ", ".join(spans(ranks))


def the_ranks(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0, 1 and 3``; cut after ``MAX_SPANS`` of them."""
    several = set(ranks)
    parts = spans(several)
    if len(several) == 1:
        return f"rank {parts[0]}"
    if len(parts) > MAX_SPANS:
        return f"ranks {', '.join(parts[:MAX_SPANS])}, ... ({len(several)} in all)"
    return f"ranks {_listed(parts)}" if parts else "nobody"


def the_nodes(nodes: Sequence[str]) -> str:
    """``node-1``, ``node-1 and node-4``; cut after ``MAX_NODES`` of them."""
    if len(nodes) > MAX_NODES:
        return f"{', '.join(nodes[:MAX_NODES])} and {len(nodes) - MAX_NODES} more"
    return _listed(nodes) if nodes else "nobody"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def capital(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def verb(ranks: Sequence[int], one: str, several: str) -> str:
    """Return the form of a verb that fits this number of ranks."""
    return one if len(ranks) == 1 else several


def code_line(site: Site | None) -> str:
    """``train.py:41``, empty for no site."""
    return f"{short_file(site.file)}:{site.line}" if site else ""


def short_file(file: str) -> str:
    """Return the last part of a path."""
    return file.rpartition("/")[2] or file


def signal_name(number: int) -> str:
    """``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
