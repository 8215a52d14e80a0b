"""Whether the meeting place can be found and reached."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from hangwatch.preflight import Finding, Grade, rendezvous
from hangwatch.preflight.job import Job
from hangwatch.preflight.network import Interface
from hangwatch.preflight.rendezvous import Answer, Endpoint, connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = [Interface("lo", ip_address("127.0.0.1")), Interface("eth0", ip_address("10.0.0.5"))]
SEVERAL = Job("torchrun", 2)
NAMES = {
    "node-0": ("10.0.0.4",),
    "node-5": ("10.0.0.5",),
    "me": ("127.0.1.1",),
    "both": ("fd77::4", "10.0.0.4"),
    "localhost": ("127.0.0.1",),
}


def resolve(name: str) -> Sequence[str]:
    if name not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return NAMES[name]


def place(host: str) -> Endpoint:
    return rendezvous.look_up(host, 29500, HERE, resolve, "me")


def judged(host: str, answers: Mapping[str, Answer], job: Job = SEVERAL) -> Finding:
    """What is said of a place whose addresses answer so."""
    return rendezvous.reachable(place(host), job, lambda one, _: answers[one], lambda _: "")


def test_a_name_that_nobody_knows_fails() -> None:
    found = rendezvous.resolution(place("nowhere"), Job())
    assert found
    assert found.grade is Grade.FAIL
    assert "nowhere does not resolve here (Name or service not known)" in found.what


@pytest.mark.parametrize(
    ("host", "job", "fails"),
    [
        ("node-0", SEVERAL, False),
        ("localhost", SEVERAL, True),
        ("localhost", Job(nodes=1), False),
        ("localhost", Job(), False),
        # The first node may know its own name as 127.0.1.1: its store listens everywhere.
        ("me", SEVERAL, False),
        ("me", Job("torchrun", 2, 0), False),
        # On another node that name would be its own address.
        ("me", Job("torchrun", 2, 1), True),
    ],
)
def test_a_name_must_not_lead_every_node_to_itself(host: str, job: Job, *, fails: bool) -> None:
    found = rendezvous.resolution(place(host), job)
    assert (found is not None) is fails
    if found:
        assert found.grade is Grade.FAIL


def test_what_comes_of_an_attempt_to_connect() -> None:
    found = judged("node-0", {"10.0.0.4": Answer.LISTENS})
    assert (found.grade, found.what) == (Grade.OK, "node-0:29500 answers (10.0.0.4)")
    assert judged("node-0", {"10.0.0.4": Answer.REFUSED}).grade is Grade.WARN
    found = judged("node-0", {"10.0.0.4": Answer.SILENT})
    assert found.grade is Grade.FAIL
    assert "10.0.0.4: no answer within 3 s" in found.what
    assert "29500" in found.remedy
    assert "no route" in judged("node-0", {"10.0.0.4": Answer.UNREACHABLE}).what


def test_the_address_that_is_tried_first_does_not_answer() -> None:
    answers = {"fd77::4": Answer.UNREACHABLE, "10.0.0.4": Answer.LISTENS}
    found = judged("both", answers)
    assert found.grade is Grade.WARN
    assert "not at fd77::4, which is tried first" in found.what


def test_two_jobs_on_one_port() -> None:
    free = rendezvous.reachable(place("node-5"), Job(), connect, lambda _: "")
    assert (free.grade, free.what) == (
        Grade.OK,
        "node-5:29500 is this machine, and the port is free",
    )
    taken = rendezvous.reachable(place("node-5"), Job(), connect, lambda _: "process 7 (python)")
    assert taken.grade is Grade.WARN
    assert "process 7 (python) listens there" in taken.what
