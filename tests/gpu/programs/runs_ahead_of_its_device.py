"""A rank leaves out one of 800 calls that all programs enqueue long before they run."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=op_mismatch|signature_mismatch certainty=proved|likely culprits=1
# expect: victims=0,2 may_be=desync

import os

import torch
import torch.distributed as dist


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    value, norm = torch.ones(4096, device=device), torch.ones(16, device=device)
    for step in range(400):
        dist.all_reduce(value)
        value /= dist.get_world_size()
        if rank != 1 or step != 250:
            dist.all_reduce(norm)
        norm.clamp_(max=1)
    print(value.sum().item())


if __name__ == "__main__":
    main()

# cause: rank_condition at `if rank != 1 or step != 250:`
