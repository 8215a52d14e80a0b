"""Reads lines of source without ever waiting: they may lie on the mount that the job hangs on."""

from __future__ import annotations

import threading

from hangwatch.evidence import sources
from hangwatch.model.calls import Site
from hangwatch.model.frames import line_of


class Lines:
    """Lines of the user's files, each file read once by a thread of its own.

    started_at: seconds of the epoch; a file that has changed since then has other lines now.
    """

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._texts: dict[str, str] = {}
        self._asked: set[str] = set()

    def of(self, site: Site, pid: int) -> str | None:
        """The line of a site of a process, None where it is not read, or not yet."""
        if site.file not in self._asked and len(self._asked) < sources.MAX_FILES:
            self._asked.add(site.file)
            reading = threading.Thread(target=self._read, args=(site.file, pid), daemon=True)
            reading.start()
        return line_of(self._texts, site.file, site.line)

    def _read(self, file: str, pid: int) -> None:
        self._texts.update(sources.read({file: pid}, self._started_at))
