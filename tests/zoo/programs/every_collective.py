"""Every kind of call once, with one rank late for each by more than a moment."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional


def calls(rank, size, pair):
    peer = rank ^ 1
    one, many = torch.ones(4), [torch.ones(4) for _ in range(size)]
    whole = torch.ones(4 * size)
    roots = many if rank == 1 else None
    yield lambda: dist.all_reduce(one)
    yield lambda: dist.broadcast(one, src=1)
    yield lambda: dist.reduce(one, dst=2)
    yield lambda: dist.all_gather(many, one)
    yield lambda: dist.all_gather_into_tensor(whole, one)
    yield lambda: dist.gather(one, roots, dst=1)
    yield lambda: dist.scatter(one, roots, src=1)
    yield lambda: dist.reduce_scatter_tensor(one, whole)
    yield lambda: dist.all_to_all_single(torch.empty(4 * size), whole)
    yield dist.barrier
    yield dist.monitored_barrier
    yield lambda: dist.all_gather_object([None] * size, {"rank": rank})
    yield lambda: dist.broadcast_object_list([rank, "text"], src=3)
    yield lambda: dist.gather_object(rank, [None] * size if rank == 0 else None, dst=0)
    yield lambda: dist.scatter_object_list([None], list(range(size)), src=2)
    yield lambda: (dist.send if rank < peer else dist.recv)(one, peer)
    yield lambda: dist.all_reduce(one, group=pair)
    yield lambda: dist.all_reduce(one, async_op=True).wait()
    yield lambda: functional.all_reduce(one, "sum", dist.group.WORLD).sum()
    yield lambda: dist.all_reduce_coalesced([one, whole])
    yield lambda: dist.new_group([0, 3])
    yield lambda: dist.barrier(group=pair)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group(members) for members in ([0, 1], [2, 3])]
    for number, call in enumerate(calls(rank, size, pairs[rank // 2])):
        if rank == number % size:
            time.sleep(1.2)
        call()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
