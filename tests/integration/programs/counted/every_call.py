"""Makes every call of torch.distributed once, on gloo, and says what it expects of the page.

FORMS: the name of the form, and what it is recorded as: pairs of the function that
the user knows and the operation that c10d is asked for. What this torch or gloo
does not support is reported as such.
"""

# ruff: noqa: SLF001 (it looks at c10d from inside)
import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

warnings.simplefilter("ignore")
FORMS = {}
RANK = int(os.environ["RANK"])
PEER = 1 - RANK
NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
GATHERS_OBJECTS = "all_gather_into_tensor" if NEW else "all_gather"
"""What all_gather_object() calls, twice."""


def form(*expected):
    """Register a function as a form."""

    def register(function):
        FORMS[function.__name__] = (function, expected)
        return function

    return register


def ones(*shape):
    return torch.ones(*shape or (4,))


@form(("all_reduce", "all_reduce"))
def all_reduce():
    tensor = ones()
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 4


@form(("all_reduce", "all_reduce"))
def all_reduce_async():
    work = dist.all_reduce(ones(), async_op=True)
    work.wait()


@form(("all_reduce", "all_reduce"))
def all_reduce_complex():
    dist.all_reduce(torch.ones(2, dtype=torch.complex64))


@form(("broadcast", "broadcast"))
def broadcast():
    tensor = ones() * RANK
    dist.broadcast(tensor, src=1)
    assert tensor.tolist() == [1.0] * 4


@form(("reduce", "reduce"))
def reduce():
    dist.reduce(ones(), dst=1)


@form(("all_gather", "all_gather"))
def all_gather():
    dist.all_gather([ones(), ones()], ones())


@form(("all_gather_into_tensor", "all_gather_into_tensor"))
def all_gather_into_tensor():
    dist.all_gather_into_tensor(ones(8), ones())


@form(("all_gather_single", "all_gather_into_tensor"))
def all_gather_single():
    dist.all_gather_single(ones(8), ones())


@form(("gather", "gather"))
def gather():
    dist.gather(ones(), [ones(), ones()] if RANK == 0 else None, dst=0)


@form(("scatter", "scatter"))
def scatter():
    dist.scatter(ones(), [ones(), ones()] if RANK == 0 else None, src=0)


@form(("reduce_scatter", "reduce_scatter"))
def reduce_scatter():
    dist.reduce_scatter(ones(), [ones(), ones()])


@form(("reduce_scatter_tensor", "reduce_scatter_tensor"))
def reduce_scatter_tensor():
    dist.reduce_scatter_tensor(ones(), ones(8))


@form(("reduce_scatter_single", "reduce_scatter_tensor"))
def reduce_scatter_single():
    dist.reduce_scatter_single(ones(), ones(8))


@form(("all_to_all_single", "all_to_all_single"))
def all_to_all_single():
    dist.all_to_all_single(ones(), ones())


@form(("all_to_all_single", "all_to_all_single"))
def all_to_all_uneven():
    sends, receives = ([1, 3], [1, 2]) if RANK == 0 else ([2, 2], [3, 2])
    dist.all_to_all_single(torch.ones(sum(receives)), ones(), receives, sends)


@form(("all_to_all", "all_to_all"))
def all_to_all():
    dist.all_to_all([ones(), ones()], [ones(), ones()])


@form(("barrier", "barrier"))
def barrier():
    dist.barrier()


@form(("barrier", "barrier"))
def barrier_async():
    dist.barrier(async_op=True).wait()


@form(("monitored_barrier", "monitored_barrier"))
def monitored_barrier():
    dist.monitored_barrier()


@form(("all_reduce_coalesced", "all_reduce_coalesced"))
def all_reduce_coalesced():
    dist.all_reduce_coalesced([ones(), ones(2)])


@form(("all_gather_coalesced", "all_gather_coalesced"))
def all_gather_coalesced():
    dist.all_gather_coalesced([[ones(), ones()], [ones(), ones()]], [ones(), ones()])


@form(*[("all_gather_object", GATHERS_OBJECTS)] * 2)
def all_gather_object():
    gathered = [None, None]
    dist.all_gather_object(gathered, {"rank": RANK})
    assert gathered == [{"rank": 0}, {"rank": 1}]


@form(("gather_object", "all_gather"), ("gather_object", "gather"))
def gather_object():
    dist.gather_object(RANK, [None, None] if RANK == 0 else None, dst=0)


@form(("broadcast_object_list", "broadcast"), ("broadcast_object_list", "broadcast"))
def broadcast_object_list():
    dist.broadcast_object_list([RANK], src=0)


@form(
    ("scatter_object_list", "broadcast"),
    ("scatter_object_list", "scatter"),
    ("scatter_object_list", "scatter"),
)
def scatter_object_list():
    dist.scatter_object_list([None], [1, 2] if RANK == 0 else None, src=0)


@form(("send", "send") if RANK == 0 else ("recv", "recv"))
def send_recv():
    dist.send(ones(), 1) if RANK == 0 else dist.recv(ones(), 0)


@form(("isend", "send") if RANK == 0 else ("irecv", "recv"))
def isend_irecv():
    (dist.isend(ones(), 1, tag=7) if RANK == 0 else dist.irecv(ones(), 0, tag=7)).wait()


@form(("send", "send") if RANK == 0 else ("recv", "recv"))
def recv_from_anyone():
    dist.send(ones(), 1) if RANK == 0 else dist.recv(ones())


@form(("batch_isend_irecv", "send"), ("batch_isend_irecv", "recv"))
def batch_isend_irecv():
    batch = [dist.P2POp(dist.isend, ones(), PEER), dist.P2POp(dist.irecv, ones(), PEER)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()


@form(
    *[("send_object_list", "send") if RANK == 0 else ("recv_object_list", "recv")] * 2,
)
def send_object_list():
    dist.send_object_list([1], 1) if RANK == 0 else dist.recv_object_list([None], 0)


@form(("all_reduce_coalesced", "all_reduce_coalesced"))
def coalescing_manager():
    with dist._coalescing_manager():
        dist.all_reduce(ones())
        dist.all_reduce(ones())


@form()
def refused():
    """A call that torch refuses before it is counted leaves no place behind."""
    try:
        dist.all_reduce("no tensor")
    except TypeError:
        return
    raise AssertionError


def flight():
    """What c10d has recorded; torch before 2.8 records nothing of gloo."""
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    entries = json.loads(dump(includeCollectives=True))["entries"] if dump else []
    return [entry for entry in entries if not entry["is_p2p"]]


def settled():
    """Wait until c10d has nothing unfinished: what it completes, it marks a moment later.

    Torch before 2.8 does not tell; and it blocks for ever where a group is freed while a thread
    of gloo's still holds a tensor.
    """
    if not hasattr(_distributed_c10d, "_dump_fr_trace_json"):
        time.sleep(1)
    deadline = time.monotonic() + 30
    while not all(entry["retired"] for entry in flight()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def main():
    dist.init_process_group("gloo")
    made = []
    for name, (function, expected) in FORMS.items():
        error = ""
        try:
            function()
        except (AttributeError, RuntimeError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        lines = [line for _, _, line in function.__code__.co_lines() if line]
        made.append(
            {"name": name, "expected": expected, "error": error, "lines": [min(lines), max(lines)]}
        )
    dist.barrier()
    settled()
    # No reference to the group is kept: torch would free it with the GIL held, and may block.
    result = {
        "forms": made,
        "flight": flight(),
        "number": dist.group.WORLD._get_sequence_number_for_group(),
    }
    Path(sys.argv[1], f"rank{RANK}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


main()
