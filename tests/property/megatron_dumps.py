"""The Flight Recorder dumps that a simulated job leaves, as NCCL's recorder writes them."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatron import Group, Job, Rank, Work


@dataclass(frozen=True, slots=True)
class Recorder:
    """How dumps are taken."""

    version: str = "2.9"
    only_active: bool = True
    as_json: bool = False
    timed: bool = False
    stacks: bool = False
    ring: int = 2000


def dump(job: Job, number: int, recorder: Recorder) -> bytes:
    """What ``_dump_nccl_trace`` of a rank gives."""
    rank = job.ranks[number]
    mine = {group.name: group for group in job.groups if number in group.ranks}
    used = [name for name in mine if name in rank.counts]
    pg_ids = {name: pg_id for pg_id, name in enumerate(mine)}
    entries: list[dict[str, Any]] = []
    for work in rank.issued:
        assert work.group is not None
        entries += _entries(job, number, work, work.group, recorder)
    for record, entry in enumerate(entries):
        entry["record_id"] = record
        entry["pg_id"] = pg_ids[entry["process_group"][0]]
    entries = entries[-recorder.ring :]
    if recorder.only_active:
        entries = [entry for entry in entries if entry["state"] != "completed"]
    found: dict[str, Any] = {
        "version": recorder.version,
        "pg_config": {
            name: {
                "name": name,
                "desc": mine[name].desc,
                "ranks": "[" + ", ".join(map(str, mine[name].ranks)) + "]",
            }
            for name in used
        },
    }
    found["nccl_version" if recorder.version == "2.4" else "comm_lib_version"] = "2.21.5"
    if recorder.version != "2.4":
        found["pg_status"] = {
            str(pg_ids[name]): _status(rank, name, as_text=recorder.as_json) for name in used
        }
    if entries or not recorder.as_json:
        found["entries"] = entries
    return json.dumps(found).encode() if recorder.as_json else pickle.dumps(found, protocol=2)


def _entries(
    job: Job, number: int, work: Work, group: Group, recorder: Recorder
) -> list[dict[str, Any]]:
    """A call; or the parts of a group of them, which never complete, and its end."""
    local = group.ranks.index
    skew_ns = (number // 8) * 30_000_000
    unset = 0 if recorder.as_json else None
    state = "scheduled"
    if work.done:
        state = "completed"
    elif recorder.timed and work.begun and not job.ranks[number].device_halted:
        state = "started"
    base: dict[str, Any] = {
        "process_group": (group.name, group.desc),
        "collective_seq_id": work.seq,
        "p2p_seq_id": work.p2p_seq,
        "op_id": work.op_id,
        "time_created_ns": work.at_ns + skew_ns,
        "input_sizes": [[4096, 1, 512]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4096, 1, 512]],
        "output_dtypes": ["BFloat16"],
        "time_discovered_started_ns": unset,
        "time_discovered_completed_ns": unset,
        "retired": work.done,
        "timeout_ms": 600_000,
        "is_p2p": bool(work.peers),
    }
    if recorder.stacks:
        base["frames"] = FRAMES
    if not work.peers:
        return [{**base, "profiling_name": f"nccl:{work.op}", "state": state}]
    parts = [
        f"nccl:send {local(number)}->{local(peer)}"
        if call == "send"
        else f"nccl:recv {local(number)}<-{local(peer)}"
        for call, peer in work.peers
    ]
    return [
        *(
            {**base, "profiling_name": name, "state": "scheduled", "retired": False}
            for name in parts
        ),
        {**base, "profiling_name": "nccl:coalesced", "state": state, "input_sizes": []},
    ]


FRAMES = [
    {"name": "all_reduce", "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 2810},
    {"name": "wrapper", "filename": "/opt/torch/distributed/c10d_logger.py", "line": 81},
    {"name": "train_step", "filename": "/home/ada/pretrain.py", "line": 312},
    {"name": "<module>", "filename": "/home/ada/pretrain.py", "line": 500},
]


def _status(rank: Rank, name: str, *, as_text: bool) -> dict[str, Any]:
    own = [work for work in rank.issued if work.group and work.group.name == name]
    done = [work for work in own if work.done]
    first_open = next((index for index, work in enumerate(own) if not work.done), len(own))
    numbers = {
        "last_enqueued_collective": _number(own[-1:]),
        "last_started_collective": _number(done[-1:]),
        "last_completed_collective": _number(own[:first_open][-1:]),
    }
    return {key: str(value) if as_text else value for key, value in numbers.items()}


def _number(last: list[Work]) -> int:
    return next((work.p2p_seq if work.peers else work.seq for work in last), -1)


def dumps(job: Job, recorder: Recorder) -> dict[int, bytes]:
    """The dumps of all ranks."""
    return {number: dump(job, number, recorder) for number in range(job.layout.world)}
