"""Scrapes are answered over HTTP, and Prometheus is told where."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from waiting import until

from hangwatch.errors import UsageError
from hangwatch.metrics import server as served
from hangwatch.metrics.server import Server, Targets, listen
from hangwatch.settings.config import Config, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Lone(Collector):
    """One gauge."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("hangwatch_lone", "Alone.", 7)


@contextmanager
def serving(host: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    found = listen(host, port, Lone())
    found.start()
    try:
        yield found
    finally:
        found.shutdown()
        found.server_close()


def scrape(target: str) -> str:
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def test_a_scrape_is_answered() -> None:
    with serving() as server:
        assert server.target == f"127.0.0.1:{server.port}"
        assert "hangwatch_lone 7.0" in scrape(server.target)


def test_an_address_of_ip6_is_served_too() -> None:
    with serving("::1") as server:
        assert server.target == f"[::1]:{server.port}"
        assert "hangwatch_lone 7.0" in scrape(server.target)


def test_a_port_that_is_taken_falls_to_a_free_one() -> None:
    with serving() as first, serving("127.0.0.1", first.port) as second:
        assert second.port != first.port
        assert "hangwatch_lone 7.0" in scrape(second.target)


def test_what_listens_everywhere_is_found_by_the_name_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving("0.0.0.0") as server:  # noqa: S104 (that is the test)
        monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
        assert server.target == f"localhost:{server.port}"
        monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
        assert server.target == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7"])
def test_an_address_that_is_not_ours_is_an_error(host: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        listen(host, 9, Lone())


def test_clients_that_say_nothing_do_not_use_up_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served, "MAX_REQUESTS", 8)
    monkeypatch.setattr(served._Handler, "timeout", 0.5)  # noqa: SLF001
    with serving() as server, ExitStack() as clients:
        for _ in range(40):
            clients.enter_context(socket.create_connection(("127.0.0.1", server.port)))

        def scraped() -> str:
            with suppress(OSError):
                return scrape(server.target)
            return ""

        answer = until(scraped, "an answer")
    assert "hangwatch_lone 7.0" in answer


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("off", None),
        ("127.0.0.1:9853", ("127.0.0.1", 9853)),
        ("[::1]:9853", ("::1", 9853)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("node-1.cluster:0", ("node-1.cluster", 0)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9853",
        ":9853",
        "::1:9853",
        "localhost",
        "[]:1",
        "[x]:1",
        "a:65536",
        "a:-1",
        "a b:1",
        "a:1 ",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--metrics-addr"):
        Config(metrics_addr=text)


MODE = 0o1777 if os.getuid() == 0 else 0o755
"""Of the directory: only in root's others may have files."""


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[Targets]:
    found = Targets(tmp_path, "run-7")
    yield found
    found.withdraw()


def test_the_file_is_what_prometheus_reads_and_anybody_may(targets: Targets) -> None:
    labels = {"run": "r1", "node": "node-a"}
    targets.publish("127.0.0.1:9853", labels)
    assert json.loads(targets.path.read_text()) == [
        {"targets": ["127.0.0.1:9853"], "labels": labels}
    ]
    assert stat.S_IMODE(targets.path.stat().st_mode) == 0o644
    assert stat.S_IMODE(targets.path.parent.stat().st_mode) == MODE
    assert targets.path.name == f"{os.getuid()}-run-7.json"
    assert list(targets.path.parent.iterdir()) == [targets.path]
    targets.withdraw()
    assert not targets.path.exists()
    targets.withdraw()


def test_the_umask_hides_nothing(targets: Targets) -> None:
    before = os.umask(0o077)
    try:
        targets.publish("127.0.0.1:9853", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(targets.path.stat().st_mode) == 0o644
    assert stat.S_IMODE(targets.path.parent.stat().st_mode) == MODE


KILLED = """
import os, signal, sys
from pathlib import Path
from hangwatch.metrics.server import Targets
Targets(Path(sys.argv[1]), sys.argv[2]).publish("127.0.0.1:1", {})
os.kill(os.getpid(), signal.SIGKILL)
"""


def left_behind(base: Path, name: str) -> Path:
    """The file of a watchdog that was killed."""
    subprocess.run([sys.executable, "-c", KILLED, str(base), name], check=False)  # noqa: S603 (ours)
    path = Targets(base, name).path
    assert path.exists()
    return path


def test_what_a_killed_watchdog_left_is_swept_out_and_nothing_else(
    tmp_path: Path, targets: Targets
) -> None:
    other = Targets(tmp_path, "other")
    other.publish("127.0.0.1:2", {})
    stale = left_behind(tmp_path, "stale")
    directory = stale.parent
    unfinished = [directory / "old.tmp", directory / "new.tmp"]
    for path in unfinished:
        path.touch()
    os.utime(unfinished[0], (1, 1))
    targets.publish("127.0.0.1:3", {})
    assert sorted(path.name for path in directory.iterdir()) == [
        f"{os.getuid()}-other.json",
        f"{os.getuid()}-run-7.json",
        "new.tmp",
    ]
    other.withdraw()


def test_the_watchdog_that_takes_over_replaces_the_file(tmp_path: Path, targets: Targets) -> None:
    left_behind(tmp_path, "run-7")
    targets.publish("127.0.0.1:3", {})
    assert "127.0.0.1:3" in targets.path.read_text()


def test_the_file_of_a_successor_is_not_withdrawn(tmp_path: Path, targets: Targets) -> None:
    targets.publish("127.0.0.1:3", {})
    successor = Targets(tmp_path, "run-7")
    successor.publish("127.0.0.1:4", {})
    targets.withdraw()
    assert "127.0.0.1:4" in successor.path.read_text()
    successor.withdraw()


def test_a_link_in_the_place_of_the_directory_is_not_followed(
    tmp_path: Path, targets: Targets
) -> None:
    (tmp_path / "elsewhere").mkdir()
    targets.path.parent.symlink_to(tmp_path / "elsewhere")
    targets.publish("127.0.0.1:3", {})
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert targets.path.parent == tmp_path / f"hangwatch-metrics-{os.getuid()}"
    assert stat.S_IMODE(targets.path.parent.stat().st_mode) == 0o755
    assert "another user: have root make it" in targets.refused


@pytest.mark.skipif(os.getuid() != 0, reason="giving files away takes root")
def test_a_directory_of_another_user_is_not_used_even_where_it_is_sticky(
    tmp_path: Path, targets: Targets
) -> None:
    directory = targets.path.parent
    directory.mkdir()
    directory.chmod(0o1777)
    os.chown(directory, 65534, 65534)
    targets.publish("127.0.0.1:3", {})
    assert list(directory.iterdir()) == []
    assert targets.path.parent == tmp_path / f"hangwatch-metrics-{os.getuid()}"
    targets.withdraw()
    assert list(tmp_path.glob("*/*")) == []


@pytest.mark.skipif(os.getuid() != 0, reason="giving files away takes root")
def test_where_the_other_name_is_taken_too_nothing_is_written(
    tmp_path: Path, targets: Targets
) -> None:
    for name in ("hangwatch-metrics", f"hangwatch-metrics-{os.getuid()}"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 65534, 65534)
    with pytest.raises(OSError, match="belongs to another user"):
        targets.publish("127.0.0.1:3", {})
    assert list(tmp_path.glob("*/*")) == []


def test_a_file_is_locked_before_anybody_finds_it(targets: Targets) -> None:
    targets.publish("127.0.0.1:3", {})
    with targets.path.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
