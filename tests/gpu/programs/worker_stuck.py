"""A data worker of one rank does not come back; the others wait in backward."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=never_entered reason=data_loading certainty=likely culprits=1 victims=0,2

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Files(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        if index == 1303:
            time.sleep(100_000)
        return torch.randn(64)


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(64, 256).to(device))
    sampler = DistributedSampler(Files(), shuffle=False)
    for inputs in DataLoader(Files(), batch_size=32, sampler=sampler, num_workers=1):
        model(inputs.to(device)).sum().backward()


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(100_000)`
