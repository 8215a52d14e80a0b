"""A rank of a sharded model leaves out a step whose batch is empty."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang certainty=proved|likely|possible culprits=1

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 9)).to(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(60):
        tokens = 0 if step == 35 and dist.get_rank() == 1 else 32
        if tokens == 0:
            continue
        loss = model(torch.randn(tokens, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


if __name__ == "__main__":
    main()

# cause: skipped_iteration at `continue` | data_condition at `if tokens == 0:`
