"""Directories of reports on disk: ``<report-dir>/<run-id>/<kind>-NNN/``.

Files are 0600 in 0700 directories. A report's directory appears whole or not at all: it is
written under another name and renamed; only the page is added after that. Several nodes may
write to one directory, if they share a run id and a report directory: no node replaces what
another has written, and rename(2) and link(2), which a network file system has too, decide
which node was first.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from hangwatch.errors import ReportError
from hangwatch.safety import untrusted

LATEST = "latest"
PAGE = "index.html"
MANY = 64
"""A list of more entries has each on one line."""
_DISCARD_TRIES = 3
_TRIES = 100
"""Numbers tried where watchdogs of several nodes write to a shared directory."""
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}
"""Errors of rename(2) of a directory to a name that is taken."""


class Kind(StrEnum):
    """What a report is of: the first part of its directory's name."""

    INCIDENT = "incident"
    STRAGGLER = "straggler"


def open_run(root: Path, run_id: str) -> Path:
    """Make the directory of a run, point ``latest`` to it, and return its absolute path.

    Raises ReportError if nothing can be written there.
    """
    path = root / run_id
    try:
        root = root.absolute()
        path = root / run_id
        root.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        with untrusted.held_directory(path):
            pass
    except OSError as error:
        raise ReportError(f"reports cannot be written to {path}: {error.strerror}") from None
    link = root / LATEST
    with suppress(OSError):
        if link.is_symlink() or not os.path.lexists(link):  # anything else is the user's
            fresh = root / f".{LATEST}-{secrets.token_hex(8)}"
            fresh.symlink_to(run_id)
            fresh.replace(link)
    return path


def latest(root: Path) -> Path | None:
    """The run that ``latest`` in a report directory points to, None if it is not one of its runs.

    Other users who may write there could have it point elsewhere.
    """
    with suppress(OSError):
        name = str((root / LATEST).readlink())
        if Path(name).name == name and untrusted.is_directory(root / name):
            return root / name
    return None


def numbered(run_dir: Path, kind: Kind) -> list[str]:
    """The names of reports in a directory, whose path may be a link. Raises OSError."""
    name = re.compile(rf"{kind}-\d{{3,18}}")
    return [one for one in untrusted.names(run_dir, follow=True) if name.fullmatch(one)]


def number_of(name: str) -> int:
    """The number in the name of a report."""
    return int(name.rpartition("-")[2])


def store(
    run_dir: Path, kind: Kind, fill: Callable[[Path], None], replaced: Path | None = None
) -> Path:
    """Keep a report and return its directory.

    fill: writes it into a directory. replaced: the directory of the same report, as it was
    before. Raises ReportError if the report cannot be written.
    """
    try:
        with untrusted.held_directory(run_dir) as held:
            fresh = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=held))
            try:
                fill(fresh)
                path = held / replaced.name if replaced else None
                if path is None or not _swapped(fresh, path):
                    path = _place(fresh, held, kind)
            finally:
                _discard(fresh)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(f"the report cannot be written to {run_dir}: {reason}") from None
    return run_dir / path.name


def add_page(path: Path, render: Callable[[], str]) -> str:
    """Render the page of a stored report; return why it cannot be written, empty if it was."""
    try:
        with untrusted.held_directory(path.parent) as held:
            replace_file(held / path.name / PAGE, render().encode())
    except Exception as error:  # noqa: BLE001 (a fault of ours must not cost the report)
        why = error.strerror if isinstance(error, OSError) else error
        return f"{path / PAGE} could not be written: {why}"
    return ""


def as_json(content: Mapping[str, Any]) -> bytes:
    """Indented for people, except for the entries of long lists.

    json.dumps() without indent uses the encoder in C, which is ten times as fast.
    """
    fields = []
    for key, value in content.items():
        if isinstance(value, list) and len(value) > MANY:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        else:
            text = json.dumps(value, indent=1).replace("\n", "\n ")
        fields.append(f" {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def create_file(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, in place of one of that name."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        create_file(fresh, data)
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _place(fresh: Path, run_dir: Path, kind: Kind) -> Path:
    """Give a new report the next free number."""
    first = max(map(number_of, numbered(run_dir, kind)), default=0) + 1
    for number in range(first, first + _TRIES):
        path = run_dir / f"{kind}-{number:03d}"
        if not os.path.lexists(path) and _renamed(fresh, path):
            return path
    raise OSError("no free number")


def _renamed(fresh: Path, path: Path) -> bool:
    """Rename a directory; return False if the name is taken."""
    try:
        fresh.rename(path)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def _swapped(fresh: Path, path: Path) -> bool:
    """Replace path by fresh; a reader sees one of the two, or briefly none.

    Return False if another node takes the name in that moment.
    """
    old = Path(tempfile.mkdtemp(prefix=".old-", dir=path.parent))
    try:
        with suppress(FileNotFoundError):
            path.rename(old / path.name)
        return _renamed(fresh, path)
    finally:
        _discard(old)


def _discard(draft: Path) -> None:
    """Remove a directory, if it still exists; try again where the file system fails once."""
    for _ in range(_DISCARD_TRIES):
        shutil.rmtree(draft, ignore_errors=True)
        if not os.path.lexists(draft):
            return
