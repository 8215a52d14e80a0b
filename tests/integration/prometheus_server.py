"""A real Prometheus and a real Alertmanager, as dashboards/ configures them.

What is replaced in their files, by text, is only where and how fast: the directory of
the targets, ports, intervals (1 s), and that an alert takes 1 s where it takes 30 s
(``for:``). The expressions are those that users get.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from harness import free_port
from monitoring import DASHBOARDS
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LOCAL = "127.0.0.1"

Series = dict[str, Any]
"""``metric``: its labels; ``value`` (instant) or ``values`` (range)."""


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{LOCAL}:{port}"

    def ready(self) -> bool:
        """Whether it answers queries."""
        with suppress(URLError, ConnectionError):
            return bool(_get(f"{self.url}/-/ready"))
        return False

    def now(self, expression: str) -> list[Series]:
        """What an expression is now."""
        return self._ask("query", query=expression)

    def over(self, expression: str, seconds: float) -> list[Series]:
        """What it was at each of the last seconds."""
        end = time.time()
        return self._ask("query_range", query=expression, start=end - seconds, end=end, step=1)

    def targets(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Those that are scraped, and those that relabelling has dropped."""
        found = json.loads(_get(f"{self.url}/api/v1/targets"))["data"]
        return found["activeTargets"], found["droppedTargets"]

    def alerts(self, state: str = "firing") -> dict[str, dict[str, str]]:
        """Alerts in this state, by their name: the labels of the last one of it."""
        found = json.loads(_get(f"{self.url}/api/v1/alerts"))["data"]["alerts"]
        return {one["labels"]["alertname"]: one["labels"] for one in found if one["state"] == state}

    def rule_errors(self) -> dict[str, str]:
        """Rules whose last evaluation failed, and why."""
        groups = json.loads(_get(f"{self.url}/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}

    def _ask(self, kind: str, **parameters: Any) -> list[Series]:
        data = urlencode(parameters).encode()
        try:
            with urlopen(f"{self.url}/api/v1/{kind}", data, timeout=30) as reply:  # noqa: S310
                answer = json.load(reply)
        except URLError as error:
            reason = error.read().decode() if hasattr(error, "read") else str(error)
            raise AssertionError(f"{parameters['query']}: {reason}") from error
        found: list[Series] = answer["data"]["result"]
        return found


def _get(url: str) -> str:
    with urlopen(url, timeout=30) as reply:  # noqa: S310 (our own server on the loopback)
        return str(reply.read().decode())


@contextmanager
def prometheus(where: Path, targets: Path, alertmanager: int) -> Iterator[Prometheus]:
    """Run one in a directory, which scrapes what lies in ``targets`` once a second."""
    source = DASHBOARDS / "prometheus"
    config = (source / "prometheus.yml").read_text()
    replaced = (
        ("/dev/shm/hangwatch-metrics", str(targets)),  # noqa: S108 (what stands in the file)
        ("127.0.0.1:9093", f"{LOCAL}:{alertmanager}"),
        ("_interval: 5s", "_interval: 1s"),
        ("replacement: 5s", "replacement: 1s"),
    )
    for old, new in replaced:
        assert old in config, old
        config = config.replace(old, new)
    rules = (source / "hangwatch.rules.yml").read_text().replace("for: 30s", "for: 1s")
    where.mkdir()
    (where / "prometheus.yml").write_text(config)
    (where / "hangwatch.rules.yml").write_text(rules)
    port = free_port()
    command = (
        "prometheus",
        f"--config.file={where}/prometheus.yml",
        f"--storage.tsdb.path={where}/data",
        f"--web.listen-address={LOCAL}:{port}",
        "--log.level=warn",
    )
    with _running(command, where / "log"):
        server = Prometheus(port)
        until(server.ready, "Prometheus")
        yield server


@contextmanager
def alertmanager(where: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Run one in a directory: its port, and the alerts that its receiver was sent so far."""
    received: list[dict[str, Any]] = []
    receiver = HTTPServer((LOCAL, 0), _receiver(received))
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    config = (DASHBOARDS / "alertmanager" / "alertmanager.yml").read_text()
    hook = f"webhook_configs: [{{url: 'http://{LOCAL}:{receiver.server_port}/'}}]"
    replaced = (
        ("  - name: team\n", f"  - name: team\n    {hook}\n"),
        ("group_wait: 10s", "group_wait: 1s"),
        ("group_interval: 1m", "group_interval: 1s"),
    )
    for old, new in replaced:
        assert old in config, old
        config = config.replace(old, new)
    where.mkdir()
    (where / "alertmanager.yml").write_text(config)
    port = free_port()
    command = (
        "prometheus-alertmanager",
        f"--config.file={where}/alertmanager.yml",
        f"--storage.path={where}/data",
        f"--web.listen-address={LOCAL}:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    )
    try:
        with _running(command, where / "log"):
            yield port, received
    finally:
        receiver.shutdown()
        receiver.server_close()


def _receiver(received: list[dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.extend(json.loads(body)["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Receiver


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[None]:
    found = shutil.which(command[0])
    assert found, f"{command[0]} is not installed: see tests/packages.sh"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (the command is made above)
            [found, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
