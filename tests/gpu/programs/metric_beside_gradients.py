"""The first rank averages a metric by itself: it pairs with the others' gradients."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=signature_mismatch certainty=likely|proved culprits=0 victims=1,2

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def mean_over_ranks(value):
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 256).to(device))
    for step in range(60):
        loss = model(torch.randn(32, 64, device=device)).square().mean()
        loss.backward()
        if step % 20 == 19 and dist.get_rank() == 0:
            print("loss", mean_over_ranks(loss))
    dist.barrier()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if step % 20 == 19 and dist.get_rank() == 0:`
