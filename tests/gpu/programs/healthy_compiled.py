"""A compiled model that trains well, with a rank that is late now and then."""
# launched with --nproc-per-node=2
# expect: state=ok exit=0

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = torch.compile(DistributedDataParallel(nn.Linear(64, 256).to(device)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(80):
        loss = model(torch.randn(32, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            dist.all_reduce(loss.detach())
            time.sleep(2.0 * dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
