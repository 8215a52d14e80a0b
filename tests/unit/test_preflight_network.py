"""Which interface gloo and NCCL would take, on machines that are made up here."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

import pytest

from hangwatch.preflight import Grade, network
from hangwatch.preflight.job import Job
from hangwatch.preflight.network import Interface, interfaces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def machine(*words: str) -> list[Interface]:
    """Interfaces from ``name=address``, down where a ! follows."""
    found = []
    for word in words:
        name, _, address = word.partition("=")
        up = not address.endswith("!")
        found.append(Interface(name, ip_address(address.removesuffix("!")), up))
    return found


def knows(*addresses: str) -> Callable[[str], Sequence[str]]:
    """A resolver with one answer; without addresses it knows no name."""

    def resolve(name: str) -> Sequence[str]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, f"{name}: unknown")
        return addresses

    return resolve


DEBIAN = machine("lo=127.0.0.1", "eth0=10.0.0.5", "docker0=172.17.0.1", "lo=::1", "eth0=fe80::1")
SEVERAL, ONE, UNKNOWN = Job(nodes=2), Job(nodes=1), Job()


def test_debians_hosts_file_makes_gloo_take_the_loopback() -> None:
    choice = network.gloo_choice({}, DEBIAN, "node-1", knows("127.0.1.1"))
    assert (str(choice.address), choice.interface) == ("127.0.1.1", "lo")
    found = network.gloo(choice, SEVERAL, DEBIAN, used=True)
    assert found.grade is Grade.FAIL
    assert "127.0.1.1 on lo (the name of this machine, node-1, resolves to it)" in found.what
    assert "GLOO_SOCKET_IFNAME=eth0" in found.remedy
    assert network.gloo(choice, ONE, DEBIAN, used=True).grade is Grade.OK
    assert network.gloo(choice, UNKNOWN, DEBIAN, used=True).grade is Grade.WARN
    assert network.gloo(choice, SEVERAL, DEBIAN, used=False).grade is Grade.WARN


@pytest.mark.parametrize(
    ("answers", "expected", "interface"),
    [
        (["10.0.0.5"], "10.0.0.5", "eth0"),
        (["10.9.9.9", "10.0.0.5"], "10.0.0.5", "eth0"),
        (["10.9.9.9"], "127.0.0.1", "lo"),
        ([], "127.0.0.1", "lo"),
        (["fe80::1"], "fe80::1", "eth0"),
        (["172.17.0.1"], "172.17.0.1", "docker0"),
    ],
)
def test_gloo_takes_the_first_address_of_its_name_that_is_its_own(
    answers: list[str], expected: str, interface: str
) -> None:
    choice = network.gloo_choice({}, DEBIAN, "node-1", knows(*answers))
    assert (str(choice.address), choice.interface) == (expected, interface)
    grade = network.gloo(choice, SEVERAL, DEBIAN, used=True).grade
    assert (grade is Grade.OK) is (expected == "10.0.0.5")


def test_gloo_takes_what_it_is_told() -> None:
    environ = {"GLOO_SOCKET_IFNAME": "eth0"}
    choice = network.gloo_choice(environ, DEBIAN, "node-1", knows("127.0.1.1"))
    assert str(choice.address) == "10.0.0.5"
    assert network.gloo(choice, SEVERAL, DEBIAN, used=True).grade is Grade.OK
    for wrong in ("eth", "eth1", "=eth0", "eth0,ib0"):
        choice = network.gloo_choice({"GLOO_SOCKET_IFNAME": wrong}, DEBIAN, "n", knows())
        found = network.gloo(choice, UNKNOWN, DEBIAN, used=True)
        assert found.grade is Grade.FAIL
        assert "lo, eth0, docker0" in found.remedy


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("eth", ["eth0", "eth01"]),
        ("=eth0", ["eth0"]),
        ("^eth", ["lo", "ib0"]),
        ("^=eth0", ["lo", "eth01", "ib0"]),
        ("ib,eth01", ["eth01", "ib0"]),
        ("=ib0,eth0", ["eth0", "ib0"]),
        ("^lo,ib", ["eth0", "eth01"]),
        ("wlan", []),
    ],
)
def test_the_forms_of_nccl(pattern: str, expected: list[str]) -> None:
    present = machine("lo=127.0.0.1", "eth0=10.0.0.5", "eth01=10.0.0.6", "ib0=10.1.0.1")
    assert [one.name for one in network.matching(pattern, present)] == expected


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (["lo=127.0.0.1", "docker0=172.17.0.1", "eth0=10.0.0.5"], "eth0"),
        (["lo=127.0.0.1", "eth0=10.0.0.5", "ib0=10.1.0.1"], "ib0"),
        (["lo=127.0.0.1", "eth0=10.0.0.5!", "docker0=172.17.0.1"], "docker0"),
        (["lo=127.0.0.1", "virbr0=192.168.122.1"], "lo"),
        (["lo=127.0.0.1", "lo=::1"], "lo"),
    ],
)
def test_nccl_leaves_lo_and_docker_for_the_last(present: list[str], expected: str) -> None:
    choice = network.nccl_choice({}, machine(*present))
    assert choice.interface == expected
    grade = network.nccl(choice, SEVERAL, machine(*present), used=True).grade
    assert grade is {"lo": Grade.FAIL, "docker0": Grade.WARN}.get(expected, Grade.OK)
    assert network.nccl(choice, ONE, machine(*present), used=True).grade is Grade.OK


def test_nccl_finds_nothing() -> None:
    choice = network.nccl_choice({"NCCL_SOCKET_IFNAME": "=bond0"}, DEBIAN)
    found = network.nccl(choice, UNKNOWN, DEBIAN, used=True)
    assert found.grade is Grade.FAIL
    assert "NCCL_SOCKET_IFNAME=^" not in found.what
    only4 = machine("lo=127.0.0.1", "eth0=10.0.0.5", "lo=::1")
    choice = network.nccl_choice({"NCCL_SOCKET_FAMILY": "AF_INET6"}, only4)
    assert network.nccl(choice, UNKNOWN, only4, used=True).grade is Grade.FAIL
    assert network.nccl_choice({"NCCL_SOCKET_FAMILY": "AF_INET6"}, DEBIAN).interface == "eth0"


def test_nccl_reads_its_files_too(tmp_path: Path) -> None:
    system = tmp_path / "nccl.conf"
    system.write_text("# ours\nNCCL_SOCKET_IFNAME==eth0\nNCCL_DEBUG=WARN\n")
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    found = network.nccl_environment({"NCCL_ALGO": "Ring"}, str(tmp_path), str(system))
    assert found == {"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}
    own = {"NCCL_SOCKET_IFNAME": "ib0"}
    found = network.nccl_environment(own, str(tmp_path), str(system))
    assert found["NCCL_SOCKET_IFNAME"] == "ib0"


def test_the_interfaces_of_this_machine_are_those_of_the_kernel() -> None:
    found = interfaces()
    assert {one.name for one in found} <= {name for _, name in socket.if_nameindex()}
    loopback = [one for one in found if one.address in ip_network("127.0.0.0/8")]
    assert loopback
    assert loopback[0].up
    assert loopback[0].address.version == 4
