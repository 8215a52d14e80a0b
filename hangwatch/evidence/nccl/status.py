"""What an answer of NCCL's RAS service says, in sentences.

RAS counts the calls that programs have launched, without sends and recvs: a communicator
whose GPUs are stuck in a kernel looks well to it. So it is told, and decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from hangwatch.model.report import RasAnswer
from hangwatch.model.snapshot import JobSnapshot
from hangwatch.text import fold_ranks

MOST = 32
"""Findings that are told."""
MAX_CHARS = 300
_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}
"""ncclResult_t, without success (0) and in progress (7)."""
_NO_COMMA = re.compile(rb'("nvml_dev": ?-?\d+)(\s+"status")')
_TEXT_VERSION = re.compile(r"^NCCL version (\S{1,40})", re.MULTILINE)
_TEXT_FINDINGS = re.compile(
    r"^(Errors|Warnings)\n=+\n(.*?)(?=^Warnings\n=+\n|\Z)", re.MULTILINE | re.DOTALL
)


def read(answer: RasAnswer, job: JobSnapshot) -> RasAnswer:
    """The answer with what it says of the ranks of a job."""
    pids = Counter(rank.pid for rank in job.ranks)  # two nodes may have one of the same number
    rank_of = {rank.pid: rank.rank for rank in job.ranks if pids[rank.pid] == 1}
    if answer.is_json:
        return _of_json(answer, rank_of)
    text = answer.data.decode("utf-8", "replace")
    version = _TEXT_VERSION.search(text)
    lines = [
        line.strip()[:MAX_CHARS]
        for part in _TEXT_FINDINGS.finditer(text)
        for line in part[2].splitlines()
        if line.strip()
    ]
    return replace(answer, version=version[1] if version else "", findings=tuple(_bounded(lines)))


def _of_json(answer: RasAnswer, rank_of: Mapping[int, int]) -> RasAnswer:
    try:
        top = _loaded(answer.data)
        communicators = [_Communicator(one, rank_of) for one in top["communicators"]]
        findings = [f"{one.name}: {what}" for one in communicators for what in one.findings()]
        version = str(top.get("nccl_version", ""))[:MAX_CHARS]
    except (orjson.JSONDecodeError, TypeError, KeyError, ValueError, AttributeError):
        return replace(answer, complete=False)
    return replace(answer, version=version, findings=tuple(_bounded(findings)))


def _loaded(data: bytes) -> Any:
    """The JSON. Of a rank that is missing, NCCL 2.28.9 leaves a comma out."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(_NO_COMMA.sub(rb"\1,\2", data))


def _bounded(findings: list[str]) -> list[str]:
    more = len(findings) - MOST
    return [*findings[:MOST], f"and {more} more"] if more > 0 else findings


class _Communicator:
    """One communicator. Its ranks are numbered within it, and known to us by their process."""

    def __init__(self, raw: Mapping[str, Any], rank_of: Mapping[int, int]) -> None:
        self._ranks = raw["ranks"]
        self._missing = raw["missing_ranks"]
        self._rank_of = rank_of
        self.name = f"communicator {raw['hash']!s:.20} of {int(raw['size'])} ranks"

    def findings(self) -> Iterator[str]:
        for one in self._missing:
            status = one["status"]
            if status["considered_dead"]:
                yield f"{self._who(one)} is considered dead"
            elif status["unresponsive"]:
                yield f"{self._who(one)} does not answer"
            else:
                yield f"{self._who(one)} has left it"
        for one in self._ranks:
            status = one["status"]
            for field, when in (("init_state", " at its set-up"), ("async_error", "")):
                if status[field] in _ERRORS:
                    yield f"{self._who(one)} reports: {_ERRORS[status[field]]}{when}"
            if status["abort_flag"]:
                yield f"{self._who(one)} has aborted it"
        yield from self._counts()

    def _counts(self) -> Iterator[str]:
        """Which ranks have launched less of an operation than others."""
        for op in self._ranks[0]["collective_counts"] if self._ranks else ():
            launched = [int(one["collective_counts"][op]) for one in self._ranks]
            counts = Counter(launched)
            most = max(counts)
            for count in sorted(counts.keys() - {most}):
                behind = [
                    one for one, own in zip(self._ranks, launched, strict=True) if own == count
                ]
                yield f"{self._all(behind)} launched {op!s:.40} {count} times, others {most}"

    def _who(self, one: Mapping[str, Any]) -> str:
        rank = self._rank_of.get(one["pid"])
        if rank is not None:
            return f"rank {rank}"
        return f"its rank {int(one['rank'])} (process {int(one['pid'])} on {one['host']!s:.64})"

    def _all(self, several: list[Mapping[str, Any]]) -> str:
        known = [self._rank_of.get(one["pid"]) for one in several]
        ranks = [rank for rank in known if rank is not None]
        if len(several) == 1:
            return f"{self._who(several[0])} has"
        if len(ranks) == len(several):
            return f"ranks {fold_ranks(ranks)} have"
        return f"its ranks {fold_ranks([int(one['rank']) for one in several])} have"
