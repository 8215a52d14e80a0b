"""Serves the metrics over HTTP, and publishes the address for Prometheus.

Scrapes are answered from threads that hold up nothing. The address lies in
``<base>/hangwatch-metrics/<uid>-NAME.json``, one file for each watchdog, in the format of
Prometheus' file_sd_config, which takes a ``*`` in the last part of a path only: so all users
have one directory, if root has made it, to which anyone may add as to /tmp. Its owner can
replace the files of others; so if that is another user, this one has
``<base>/hangwatch-metrics-<uid>`` instead. The base is that of the run directories (rundir.py),
which are private; these files may be read by all. Each is locked (flock(2)) by its watchdog:
a file whose lock is free was left behind, and the next watchdog of that user removes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from hangwatch.safety import untrusted

MAX_REQUESTS = 64
"""Requests above which others are refused: each takes a thread."""
REQUEST_S = 10.0
"""Time for a client to send its request."""
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 (what is compared with, not listened on)
_LOOPBACK = "127.0.0.1"
SUFFIX = ".json"
DIRECTORY = "hangwatch-metrics"
_UNFINISHED = ".tmp"
"""Not matched by Prometheus' glob."""
_ROOT = 0
_SHARED, _OWN = 0o1777, 0o755
"""In root's directory all may add, and remove their own (the sticky bit)."""
_YOUNG_S = 60.0
"""An unfinished file younger than this may still be written."""


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """Listens at once, answers from start() on. Raises OSError where it cannot listen."""

    daemon_threads = True
    request_queue_size = 64
    # Otherwise two watchdogs could have one port, and each scrape go to either.
    allow_reuse_port = False

    def __init__(self, host: str, port: int, collector: Collector) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        self.address_family = family
        super().__init__((str(address[0]), int(address[1])), _Handler)
        registry = CollectorRegistry()
        registry.register(collector)
        self.set_app(make_wsgi_app(registry))
        self._free = threading.Semaphore(MAX_REQUESTS)

    @property
    def port(self) -> int:
        """The port it listens at."""
        return int(self.server_address[1])

    @property
    def target(self) -> str:
        """HOST:PORT for a Prometheus on this node, or on any if it listens for all."""
        host = str(self.server_address[0])
        if host in _WILDCARDS:
            host = _own_name()
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def start(self) -> None:
        """Answer, in a thread of its own."""
        threading.Thread(target=self.serve_forever, name="hangwatch-metrics", daemon=True).start()

    def server_bind(self) -> None:
        """Bind without asking for our own name, which may take a dead name server's time."""
        socketserver.TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = self.port
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, unless there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, from that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that is gone."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, *_: Any) -> None:
        """Say nothing: standard error is the job's."""


def listen(host: str, port: int, collector: Collector) -> Server:
    """Make a server at the port, or at a free one if it is taken.

    May take as long as a name server does. Raises OSError.
    """
    try:
        return Server(host, port, collector)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise
    return Server(host, 0, collector)


def _own_name() -> str:
    """Return the name of this machine if it resolves, else the loopback's address."""
    name = socket.gethostname()
    with suppress(OSError):
        socket.getaddrinfo(name, None)
        return name
    return _LOOPBACK


class Targets:
    """The file with the address of one watchdog, from publish() to withdraw()."""

    def __init__(self, base: Path, name: str) -> None:
        self._base = base
        self._directory = base / DIRECTORY
        self.refused = ""
        """The reason why Prometheus' own directory is not used, empty if it is."""
        self._name = f"{os.getuid()}-{name}"
        self._lock: int | None = None

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._directory / f"{self._name}{SUFFIX}"

    def publish(self, target: str, labels: Mapping[str, str]) -> None:
        """Write the file, and remove the files that were left behind. Raises OSError.

        labels: of all series of the target, also of the series that Prometheus makes (``up``).
        """
        content = json.dumps([{"targets": [target], "labels": dict(labels)}])
        try:
            self._write(self._base / DIRECTORY, content)
        except OSError as error:
            self.refused = error.strerror or str(error)
            self._write(self._base / f"{DIRECTORY}-{os.getuid()}", content)

    def _write(self, directory: Path, content: str) -> None:
        _make(directory)
        self._directory = directory
        self._sweep()
        fresh = directory / f"{self._name}-{os.getpid()}{_UNFINISHED}"
        lock = untrusted.create(fresh)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held before it is visible
            os.fchmod(lock, 0o644)
            os.write(lock, content.encode())
            fresh.replace(self.path)
        except OSError:
            os.close(lock)
            with suppress(OSError):
                fresh.unlink()
            raise
        self._lock = lock

    def withdraw(self) -> None:
        """Remove the file; never raises."""
        if self._lock is None:
            return
        with suppress(OSError):
            if untrusted.is_at(self._lock, self.path):
                self.path.unlink()
        os.close(self._lock)
        self._lock = None

    def _sweep(self) -> None:
        for path in self._directory.iterdir():
            with suppress(OSError):
                found = path.lstat()
                young = time.time() - found.st_mtime < _YOUNG_S
                if found.st_uid == os.getuid() and (path.suffix == SUFFIX or not young):
                    _remove_abandoned(path)


def _make(directory: Path) -> None:
    """Make a directory, or take one that only root could tamper with. Raises OSError."""
    with suppress(FileExistsError):
        directory.mkdir(mode=_OWN)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {_ROOT, os.getuid()}:
        raise OSError(f"{directory} belongs to another user: have root make it, with mode 1777")
    mode = _SHARED if os.getuid() == _ROOT and directory.name == DIRECTORY else _OWN
    if found.st_uid == os.getuid():
        if stat.S_IMODE(found.st_mode) != mode:
            directory.chmod(mode)
    elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise OSError(f"{directory} lets all users delete any file: have root give it mode 1777")


def _remove_abandoned(path: Path) -> None:
    """Remove a file that is not locked. Raises OSError."""
    handle = untrusted.open_ours(path)
    try:
        # It may have been replaced just now.
        if untrusted.take_lock(handle, fcntl.LOCK_EX) and untrusted.is_at(handle, path):
            path.unlink()
    finally:
        os.close(handle)
