"""Answers scrapes over HTTP, from threads that hold up nothing."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

MAX_THREADS = 64
"""Threads of the process from which on requests are turned away: each has one while it lasts."""
REQUEST_S = 10.0
"""How long a client may take to say what it wants."""
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 (what is compared with, not listened on)
_NAMELESS = "127.0.0.1"


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """Listens at once, answers from start() on. Raises OSError where it cannot listen."""

    daemon_threads = True
    request_queue_size = 64
    # Else two watchdogs could have one port, and each scrape go to either.
    allow_reuse_port = False

    def __init__(self, host: str, port: int, collector: Collector) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        self.address_family = family
        super().__init__((str(address[0]), int(address[1])), _Handler)
        registry = CollectorRegistry()
        registry.register(collector)
        self.set_app(make_wsgi_app(registry))

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    @property
    def target(self) -> str:
        """HOST:PORT as a Prometheus on this node reaches it, or on any where that is meant."""
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
        if threading.active_count() > MAX_THREADS:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no news."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, *_: Any) -> None:
        """Say nothing: standard error is the job's."""


def listen(host: str, port: int, collector: Collector) -> Server:
    """A server at the port, or at a free one where it is taken.

    May take as long as a name server does. Raises OSError.
    """
    try:
        return Server(host, port, collector)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise
    return Server(host, 0, collector)


def _own_name() -> str:
    """The name of this machine if it can be reached by it, else the loopback's address."""
    name = socket.gethostname()
    with suppress(OSError):
        socket.getaddrinfo(name, None)
        return name
    return _NAMELESS
