"""A pipeline over batch_isend_irecv, isend and send, with collectives in between."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist
from torch.distributed import P2POp, batch_isend_irecv


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(20):
        outgoing, incoming = torch.full((32,), float(rank)), torch.empty(32)
        works = batch_isend_irecv(
            [P2POp(dist.isend, outgoing, after), P2POp(dist.irecv, incoming, before)]
        )
        for work in works:
            work.wait()
        assert incoming[0] == before
        if rank == step % world_size:
            time.sleep(0.3)
        if rank > 0:
            dist.recv(incoming, src=rank - 1)
        if rank < world_size - 1:
            sent = dist.isend(outgoing, dst=rank + 1)
            sent.wait()
        if step % 4 == 0:
            dist.all_reduce(outgoing)
    dist.monitored_barrier()
    dist.all_reduce(outgoing)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
