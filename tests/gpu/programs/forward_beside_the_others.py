"""The first rank runs the model once more: its batch norm communicates, and the others do not."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=subset_entered|op_mismatch certainty=proved|likely culprits=0 victims=1,2

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
    trunk = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    trunk = nn.SyncBatchNorm.convert_sync_batchnorm(trunk).to(device)
    model = DistributedDataParallel(trunk)
    for step in range(60):
        inputs = torch.randn(32, 64, device=device)
        if step == 30 and dist.get_rank() == 0:
            model.module(inputs[:8])
        loss = model(inputs).square().mean()
        loss.backward()
        print(step, loss.item())


if __name__ == "__main__":
    main()

# cause: rank_condition at `if step == 30 and dist.get_rank() == 0:`
