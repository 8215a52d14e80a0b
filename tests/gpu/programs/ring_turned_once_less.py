"""A rank turns the ring once less than the others, and goes on to what comes after it."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=missing_peer certainty=likely culprits=1

import os

import torch
import torch.distributed as dist


def turned(block, rank, world):
    received = torch.empty_like(block)
    exchange = [
        dist.P2POp(dist.isend, block, (rank + 1) % world),
        dist.P2POp(dist.irecv, received, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    return received


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(40):
        block = torch.randn(32, 64, device=device)
        turns = world - 2 if rank == 1 and step == 22 else world - 1
        for _ in range(turns):
            block = turned(block, rank, world)
        total = block.sum()
        dist.all_reduce(total)
        print(step, total.item())


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for _ in range(turns):` | uneven_loop at `turns = world - 2 if...`
