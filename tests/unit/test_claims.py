"""What pages, dumps and reports claim costs no more than what they hold.

A number in a file may size a list or a loop of ours: each is set to what nobody would set it
to, and the judging has to come to its end, within a bound of memory.
"""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import incident
import made_pages
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hangwatch.commands.analyze import judge
from hangwatch.commands.top.incident import StoredReport, with_report
from hangwatch.errors import HangwatchError, PageError
from hangwatch.evidence.pages.reader import parse_page
from hangwatch.model import json_page
from hangwatch.model.page import MAX_WORLD
from hangwatch.report.build import build_report
from hangwatch.report.html import render_page
from hangwatch.report.terminal import format_verdict
from hangwatch.safety import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BYTES = 1500 << 20
"""More than before: 10^6 ranks of which one is known take half of it."""
# What is just within the bounds takes a second, and has examples of its own.
HUGE = st.sampled_from(
    [-(1 << 63), -1, 0, 1, 2, 3, 1000, MAX_WORLD + 1, 10**8, (1 << 31), (1 << 63) - 1]
)


@contextmanager
def bounded() -> Iterator[None]:
    """Within so much memory."""
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def judged(**files: bytes) -> None:
    """Have them analysed and reported, or refused with a reason."""
    with TemporaryDirectory() as directory, bounded():
        for name, data in files.items():
            Path(directory, name.replace("__", ".")).write_bytes(data)
        with suppress(HangwatchError):
            evidence, _ = judge([Path(directory)])
            content = json.loads(json.dumps(build_report(evidence)))
            assert list(format_verdict(content))


def page_bytes(values: dict[str, Any]) -> bytes:
    data = bytearray(json_page.PAGE_BYTES)
    json_page.write(data, 1, json_page.encode(values))
    return bytes(data)


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a JSON value there are numbers, or texts that are."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from numbers(inside, (*path, key))
    elif isinstance(value, list | tuple):
        for place, inside in enumerate(value):
            yield from numbers(inside, (*path, place))
    elif type(value) is int or (isinstance(value, str) and value.isdecimal()):
        yield path


def claiming(value: Any, path: tuple[Any, ...], claim: Any) -> Any:
    """A copy in which one value is another."""
    if not path:
        return claim
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = claiming(value[path[0]], path[1:], claim)
    return copy


PAGE = json.loads(json.dumps(asdict(made_pages.page(events=(made_pages.event(),)))))
DUMP: dict[str, Any] = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": [0, 1]}},
    "pg_status": {
        "0": {
            "last_enqueued_collective": 3,
            "last_started_collective": 3,
            "last_completed_collective": 2,
        }
    },
    "entries": [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": name,
            "time_created_ns": 1700000000000000000 + number,
            "input_sizes": [[4, 4]],
            "output_sizes": [[4, 4]],
            "input_dtypes": ["Float"],
            "state": "scheduled",
            "is_p2p": name.startswith("nccl:send"),
            "retired": False,
        }
        for number, name in enumerate(["nccl:all_reduce", "nccl:send 0->1", "nccl:all_gather"])
    ],
}
IN_PAGES = sorted(numbers(PAGE), key=str)
IN_DUMPS = sorted(numbers(DUMP), key=str)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(IN_PAGES), HUGE, max_size=3), st.sampled_from([1, 2]))
@example({("identity", "world_size"): 10**8}, 2)
@example({("identity", "world_size"): MAX_WORLD}, 1)
@example({("identity", "rank"): 10**8}, 1)
@example({("groups", 0, "key", "ranks", 1): 10**12}, 2)
def test_a_page_may_claim_what_it_likes(claims: dict[tuple[Any, ...], int], pages: int) -> None:
    values = PAGE
    for path, claim in claims.items():
        values = claiming(values, path, claim)
    files = {"r0-0-1__page": page_bytes(values)}
    if pages > 1:
        files["r0-1-2__page"] = page_bytes(claiming(PAGE, ("identity", "rank"), 1))
    judged(**files)


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(IN_DUMPS), st.one_of(HUGE, HUGE.map(str)), max_size=3),
    st.sampled_from(["rank_1", "rank_1__json", "rank_9999999"]),
    st.sampled_from([[0, 1], [0, 10**8], list(range(500)), "[0, 1]", "[0, 99999999999]"]),
)
@example({}, "rank_9999999", [0, 1])
@example({}, f"rank_{MAX_WORLD - 1}", [0, MAX_WORLD - 1])
def test_a_dump_may_claim_what_it_likes(
    claims: dict[tuple[Any, ...], Any], name: str, ranks: Any
) -> None:
    values = DUMP
    for path, claim in claims.items():
        values = claiming(values, path, claim)
    values = claiming(values, ("pg_config", "0", "ranks"), ranks)
    judged(rank_0=json.dumps(values).encode(), **{name: json.dumps(DUMP).encode()})


@pytest.mark.parametrize("size", [MAX_WORLD + 1, 10**8, 1 << 62])
def test_a_world_beyond_any_job_is_refused_with_a_reason(size: int) -> None:
    with pytest.raises(PageError, match=r"no job has more than 1048576"):
        parse_page(page_bytes(claiming(PAGE, ("identity", "world_size"), size)))
    assert parse_page(page_bytes(claiming(PAGE, ("identity", "world_size"), MAX_WORLD)))


REPORT = json.loads(json.dumps(build_report(incident.EVIDENCE)))
IN_REPORTS = sorted(numbers(REPORT), key=str)
ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)


@settings(max_examples=8)  # a page takes a second
@given(st.dictionaries(st.sampled_from(IN_REPORTS), HUGE, max_size=4))
def test_a_report_may_claim_what_it_likes(claims: dict[tuple[Any, ...], int]) -> None:
    content = REPORT
    for path, claim in claims.items():
        with suppress(KeyError, IndexError, TypeError):
            content = claiming(content, path, claim)
    with bounded():
        content = untrusted.parse_json(json.dumps(content).encode())
        with suppress(*ODD):  # which `report` says
            list(format_verdict(content))
        with suppress(*ODD):
            render_page(content)
        with_report([], StoredReport(Path(), 0.0, content), 1.0)
