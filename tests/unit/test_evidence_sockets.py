"""Who listens on a port of this machine, and who is connected to it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from hangwatch.evidence.sockets import listener, peers
from hangwatch.preflight.rendezvous import Answer, connect

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_listens_and_who_is_connected(family: socket.AddressFamily) -> None:
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert "pytest" in listener(port) or "python" in listener(port)
        assert connect(address, port) is Answer.LISTENS
        with socket.create_connection((address, port)):
            assert peers(port) == []  # this machine itself does not count
    assert listener(port) == ""
    assert connect(address, port) is Answer.REFUSED


def test_addresses_of_the_kernels_tables(tmp_path: Path) -> None:
    header = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid inode\n"
    )
    tail = "00000000:00000000 00:00000000 00000000 0 0 {} 1\n"
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        f"{header}   0: 0100000A:72D8 0200000A:9C40 01 {tail.format(11)}"
        f"   1: 00000000:72D8 00000000:0000 0A {tail.format(12)}"
    )
    mapped = "0000000000000000FFFF00000300000A"
    here = "0000000000000000FFFF00000100000A"
    six = "000077FD000000000000000001000000"
    (tmp_path / "net" / "tcp6").write_text(
        f"{header}   0: {here}:72D8 {mapped}:9C40 01 {tail.format(13)}"
        f"   1: {six}:72D8 {six[:-8]}02000000:9C41 01 {tail.format(14)}"
        f"   2: {six}:72D8 {six}:9C42 01 {tail.format(15)}"
    )
    assert peers(29400, str(tmp_path)) == ["10.0.0.2", "10.0.0.3", "fd77::2"]
    assert peers(29401, str(tmp_path)) == []
    assert listener(29400, str(tmp_path)) == "another process"
    assert listener(29401, str(tmp_path)) == ""
