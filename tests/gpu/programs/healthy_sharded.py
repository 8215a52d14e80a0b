"""A sharded model that trains well, in which ranks exchange activations in a ring."""
# launched with --nproc-per-node=3
# expect: state=ok exit=0

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 9)).to(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(60):
        loss = model(torch.randn(16, 64, device=device)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        sent, taken = loss.detach().reshape(1), torch.empty(1, device=device)
        right = dist.P2POp(dist.isend, sent, (rank + 1) % world)
        left = dist.P2POp(dist.irecv, taken, (rank - 1) % world)
        for work in dist.batch_isend_irecv([right, left]):
            work.wait()
        if step % 20 == 0 and rank == 1:
            time.sleep(2.5)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
