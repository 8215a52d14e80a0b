"""NCCL's RAS service, which a fake stands for, is asked for its view of an incident."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_ras import TEXT, FakeRas, absent, member, status
from harness import reaches, watch
from waiting import in_time

from hangwatch.errors import EvidenceError
from hangwatch.evidence import ras
from hangwatch.evidence.ras import interpret
from hangwatch.model.kinds import Phase
from hangwatch.model.report import RasAnswer
from hangwatch.model.snapshot import JobSnapshot, ProcessState, RankSnapshot

if TYPE_CHECKING:
    from collections.abc import Collection

JOB = JobSnapshot(
    3,
    tuple(
        RankSnapshot(rank, "node-a", 100 + rank, Phase.RUNNING, ProcessState(alive=True))
        for rank in range(3)
    ),
)


def asked(
    fake: FakeRas, timeout_s: float = 10.0, pids: Collection[int] = (), **variables: str
) -> RasAnswer | None:
    environ = {"NCCL_RAS_ADDR": fake.address} | variables
    return asyncio.run(ras.ask(pids or [os.getpid()], environ, timeout_s))


def told(answer: str, *, is_json: bool = True) -> tuple[str, ...]:
    found = interpret(RasAnswer(answer.encode(), is_json=is_json, complete=True), JOB)
    assert found.complete
    return found.findings


def test_it_is_asked_in_its_own_words() -> None:
    with FakeRas(status(member(0, 100))) as fake:
        answer = asked(fake)
        assert answer is not None
        assert (answer.data.decode(), answer.is_json, answer.complete) == (fake.answer, True, True)
        assert fake.commands == [
            "CLIENT PROTOCOL 2",
            "TIMEOUT 1",
            "SET FORMAT json",
            "VERBOSE STATUS",
        ]


def test_one_that_knows_no_json_is_read_as_text() -> None:
    found = "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n\n"
    text = TEXT.format(errors="INCOMPLETE", found=found)
    with FakeRas(text, knows_json=False) as fake:
        answer = asked(fake)
    assert answer is not None
    assert not answer.is_json
    answer = interpret(answer, JOB)
    assert answer.version == "2.24.3"
    assert answer.findings == (
        "#0-0 (cf264af53edbe986) INCOMPLETE",
        "Missing communicator data from 1 rank",
    )
    assert told(TEXT.format(errors="OK", found=""), is_json=False) == ()


def test_the_service_of_another_job_is_not_ours() -> None:
    with FakeRas(status(member(0, 100))) as fake:
        assert asked(fake, pids=[os.getppid()]) is None
        assert "VERBOSE STATUS" not in fake.commands


def test_where_nobody_listens_or_it_is_off_nothing_is_asked() -> None:
    with FakeRas("") as fake:
        assert asked(fake, NCCL_RAS_ENABLE="0") is None
        closed = fake.address
    assert asyncio.run(ras.ask([os.getpid()], {"NCCL_RAS_ADDR": closed}, 1.0)) is None
    assert asyncio.run(ras.ask([], {}, 1.0)) is None
    assert fake.commands == []


def test_an_answer_that_does_not_end_is_kept_as_far_as_it_came() -> None:
    with FakeRas(status(member(0, 100)), hangs=True) as fake:
        began = time.monotonic()
        answer = asked(fake, timeout_s=1.0)
    in_time(began, 5)
    assert answer is not None
    assert not answer.complete
    assert fake.answer.encode().startswith(answer.data)
    assert not interpret(answer, JOB).complete


def test_something_else_on_the_port_is_left_alone() -> None:
    with FakeRas("", greeting="HTTP/1.1 400 Bad Request") as fake:
        assert asked(fake, timeout_s=2.0) is None
        assert set(fake.commands) == {"CLIENT PROTOCOL 2"}


def test_one_that_speaks_tls_alone_is_said_to_be_so() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def serve(server: socket.socket) -> None:
        for _ in range(ras.TRIES):
            connection = server.accept()[0]
            with suppress(OSError):  # what comes is not TLS
                context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        variables = {"NCCL_RAS_ADDR": address}
        pool.submit(serve, server)
        with pytest.raises(EvidenceError, match=f"{address} closes .* may ask for TLS"):
            asyncio.run(ras.ask([os.getpid()], variables, 10.0))
        pool.submit(serve, server)
        assert asyncio.run(ras.ask([os.getppid()], variables, 10.0)) is None  # not NCCL's


def test_what_is_well_is_not_told() -> None:
    assert told(status(member(0, 100), member(1, 101), member(2, 102))) == ()


def test_ranks_are_named_as_the_job_numbers_them() -> None:
    members = member(0, 102, async_error=6), member(1, 100, launched=4), member(2, 999)
    missing = absent(3, 101), absent(4, 998, dead=True), absent(5, 997, unresponsive=False)
    name = "communicator 0xbba1d25d7f4e6b2f of 6 ranks: "
    assert told(status(*members, missing=missing)) == (
        name + "rank 1 does not answer",
        name + "its rank 4 (process 998 on 10.0.0.1) is considered dead",
        name + "its rank 5 (process 997 on 10.0.0.1) has left it",
        name + "rank 2 reports: remote process error",
        name + "rank 0 has launched AllReduce 4 times, others 5",
    )


def test_the_comma_that_nccl_2_28_9_leaves_out_is_put_in() -> None:
    answer = status(member(0, 100), missing=(absent(1, 101),))
    broken = re.sub(r'("nvml_dev": \d+),(\s+"status": \{\s+"unresponsive")', r"\1\2", answer)
    assert broken != answer
    assert told(broken) == told(answer) != ()


def test_many_findings_are_cut() -> None:
    missing = tuple(absent(rank, 1000 + rank) for rank in range(100))
    found = told(status(member(0, 100), missing=missing))
    assert len(found) == 33
    assert found[-1] == "and 68 more"


@pytest.mark.parametrize("data", ["", "[]", '{"communicators": 5}', '{"communicators": [{}]}'])
def test_an_answer_of_another_shape_is_kept_and_told_as_such(data: str) -> None:
    found = interpret(RasAnswer(data.encode(), is_json=True, complete=True), JOB)
    assert (found.complete, found.findings, found.data) == (False, (), data.encode())


def test_a_report_tells_what_the_service_on_its_node_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    result = watch(
        Path(__file__).parent / "programs" / "asks_ras.py",
        "--suspect-after",
        "2",
        nproc=2,
        env={"NCCL_RAS_ADDR": address},
        until=reaches("slow"),
    )
    (report,) = result.reports
    assert report["verdict"]["culprits"] == [1]
    finding = "communicator 0xbba1d25d7f4e6b2f of 2 ranks: rank 1 does not answer"
    assert report["nccl"] == {"ras": {"version": "2.28.3", "complete": True, "findings": [finding]}}
    assert f"RAS of NCCL 2.28.3: {finding}." in [one["what"] for one in report["timeline"]]
    assert report["run"]["versions"]["NCCL"] == "2.28.3"
    assert report["environment"]["NCCL_RAS_ADDR"] == address
