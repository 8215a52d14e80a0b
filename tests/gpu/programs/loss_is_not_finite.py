"""A rank whose loss is infinite leaves out a call that the others make between two backwards."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=signature_mismatch certainty=proved|likely culprits=1 victims=0,2

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 256).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        inputs = torch.randn(32, 64, device=device)
        if step == 35 and dist.get_rank() == 1:
            inputs[3] = float("inf")
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if torch.isfinite(loss):
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            print(step, shown.item())


if __name__ == "__main__":
    main()

# cause: data_condition at `if torch.isfinite(loss):`
