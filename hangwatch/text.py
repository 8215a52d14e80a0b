"""Text for people: the one module that formats ranks, counts, times, calls and lines of code."""

from __future__ import annotations

import signal
import sys
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
    return f"ranks {_listed(parts)}" if parts else "no rank"


def the_nodes(nodes: Sequence[str]) -> str:
    """``node-1``, ``node-1 and node-4``; cut after ``MAX_NODES`` of them."""
    if len(nodes) > MAX_NODES:
        return f"{', '.join(nodes[:MAX_NODES])} and {len(nodes) - MAX_NODES} more"
    return _listed(nodes) if nodes else "no node"


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


def ranks_text(ranks: Iterable[int], most: int = sys.maxsize, more: int = 0) -> str:
    """``rank 2``, ``ranks 0, 1, 3-7``, ``ranks 0, 2, 4 and 9 more``, ``no rank``.

    If there are more than ``most`` + 1 ranges, the first ``most`` are shown. more: the number of
    further ranks, which are not at hand.
    """
    members = set(ranks)
    if not members:
        return "no rank"
    shown = members
    if len(runs := ranges(members)) > most + 1:
        shown = {rank for first, last in runs[:most] for rank in range(first, last + 1)}
    more += len(members) - len(shown)
    text = f"rank{'s' * (len(members) + more > 1)} {fold_ranks(shown)}"
    return f"{text} and {more:,} more" if more else text


def call_name(op: str, seq: int) -> str:
    """``all_reduce #41``; without the number for a call that has none."""
    return f"{op} #{seq}" if seq else op


def code_location(file: str, line: int, parts: int = 2) -> str:
    """``ada/train.py:9``: the last parts of a path, and the line where it is known."""
    short = "/".join(file.rsplit("/", parts)[-parts:])
    return f"{short}:{line}" if line else short


def signal_name(number: int) -> str:
    """``SIGKILL``; ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def words(name: str | None) -> str:
    """``never entered`` for ``never_entered``; empty for None."""
    return (name or "").replace("_", " ")


def shortened(text: str, length: int = 160) -> str:
    """The text, its middle left out where it is longer than ``length``."""
    if len(text) <= length:
        return text
    half = (length - 1) // 2
    return f"{text[: length - 1 - half]}…{text[len(text) - half :]}"


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 rank``, ``3 ranks``, ``no ranks``."""
    return f"{number or 'no'} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """Short, and as exact as needed: ``1.4 ms``, ``0.3 s``, ``42 s``, ``5 min``, ``3 h 20 min``."""
    if 0 < seconds < 0.1:  # noqa: PLR2004 (tenths of a second would hide it)
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"  # noqa: PLR2004
    if seconds < 10:  # noqa: PLR2004 (tenths matter below it)
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 180:  # noqa: PLR2004 (up to three minutes people think in seconds)
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:  # noqa: PLR2004
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def percent(fraction: float) -> str:
    """``37 %``."""
    return f"{fraction:.0%}".replace("%", " %")
