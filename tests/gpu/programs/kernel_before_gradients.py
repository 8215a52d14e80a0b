"""A kernel of one rank does not come to its end; its gradients are enqueued behind it."""
# launched with --nproc-per-node=2
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=collective_stuck certainty=likely culprits=
# expect timed: state=hang kind=never_entered reason=gpu_kernel certainty=possible culprits=1
# expect timed: victims=0

import os
import sys

if "timed" in sys.argv:
    os.environ["TORCH_NCCL_ENABLE_TIMING"] = "1"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOR_EVER = 1 << 42  # cycles: 40 minutes


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 256).to(device))
    for step in range(100):
        if step == 40 and dist.get_rank() == 1:
            torch.cuda._sleep(FOR_EVER)  # noqa: SLF001 (a kernel that runs for so long)
        loss = model(torch.randn(32, 64, device=device)).square().mean()
        loss.backward()
        print(step, loss.item())


if __name__ == "__main__":
    main()
