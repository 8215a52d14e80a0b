"""Prometheus, configured as we ship it, is not led elsewhere by what others leave for it."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from harness import free_port
from prometheus_server import prometheus
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ELSEWHERE = "127.0.0.2"
"""An address that is not among those by which a watchdog is told of."""


@contextmanager
def asked(host: str) -> Iterator[tuple[int, list[str]]]:
    """A server: its port, and the paths that it has been asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"hangwatch_planted 1\n")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer((host, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, paths
    finally:
        server.shutdown()
        server.server_close()


def test_a_planted_target_changes_neither_address_nor_path_nor_labels(tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    targets.mkdir()
    with asked("127.0.0.1") as (port, here), asked(ELSEWHERE) as (other, elsewhere):
        overrides = {
            "__address__": f"{ELSEWHERE}:{other}",
            "__metrics_path__": "/delete",
            "__scheme__": "https",
            "__param_all": "yes",
            "__scrape_interval__": "1h",
            "__scrape_timeout__": "1h",
            "instance": "database",
            "job": "database",
            "run": "r1",
            "node": "node-a",
        }
        planted = [
            {"targets": [f"127.0.0.1:{port}"], "labels": overrides},
            {"targets": [f"{ELSEWHERE}:{other}"], "labels": {}},
            {"targets": [f"127.0.0.1:{port}@{ELSEWHERE}:{other}"], "labels": {}},
            {"targets": [f"127.0.0.1:{port}/delete?"], "labels": {}},
        ]
        (targets / "0-planted.json").write_text(json.dumps(planted))
        with prometheus(tmp_path / "prometheus", targets, free_port()) as server:
            until(lambda: len(here) > 1, "two scrapes")
            active, dropped = server.targets()
    assert elsewhere == []
    assert set(here) == {"/metrics"}
    (target,) = active
    assert target["scrapeUrl"] == f"http://127.0.0.1:{port}/metrics"
    assert target["labels"] == {
        "instance": f"127.0.0.1:{port}",
        "job": "hangwatch",
        "node": "node-a",
        "run": "r1",
    }
    assert len(dropped) == 3
