"""Tells a user's own code from torch's, the standard library's and installed packages'.

Decided by the parts of the path alone: the process that was looked at may have
another prefix, or run on another node.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hangwatch.types import Frame, Site

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_INTERNAL = re.compile(
    r"/(?:site|dist)-packages/"
    r"|/lib(?:64)?/python3(?:\.\d+)?t?/"
    r"|/hangwatch/(?:agent|sitecustomize)/"
    r"|/torchinductor_[^/]+/"
    r"|\.(?:so|c|cc|cpp|h|pyx|S)(?:[.\d]*)$"
)


def is_user_file(file: str) -> bool:
    """Whether a file is the user's own code.

    Not so: installed packages, the standard library, hangwatch's agent, what
    inductor generated, native code, and names such as ``<frozen runpy>``.
    """
    if not file or file.startswith("<"):
        return False
    return not _INTERNAL.search(file)


def user_frames(frames: Iterable[Frame]) -> list[Frame]:
    """The frames of user code that have a line, in the order given."""
    return [frame for frame in frames if frame.line > 0 and is_user_file(frame.file)]


def site_of(frame: Frame, sources: Mapping[str, str]) -> Site:
    """A frame as a site, with its line where the source is at hand."""
    return Site(frame.file, frame.line, frame.function, line_of(sources, frame.file, frame.line))


def with_source(site: Site | None, sources: Mapping[str, str]) -> Site | None:
    """A site with its line, where it has none yet and the source is at hand."""
    if site is None or site.source is not None:
        return site
    return Site(site.file, site.line, site.function, line_of(sources, site.file, site.line))


def line_of(sources: Mapping[str, str], file: str, line: int) -> str | None:
    """The stripped line of a file, None where it cannot be had."""
    text = sources.get(file)
    if text is None or line < 1:
        return None
    lines = _lines(text)
    return (lines[line - 1].strip() or None) if line <= len(lines) else None


@lru_cache(maxsize=64)
def _lines(text: str) -> list[str]:
    """The lines of a file that many ranks are in."""
    return text.splitlines()


def innermost_user_site(frames: Sequence[Frame], sources: Mapping[str, str]) -> Site | None:
    """Where the user's code is in a stack given innermost first, or None."""
    found = user_frames(frames)
    return site_of(found[0], sources) if found else None
