"""A rank does not come to the first call of a group, in which NCCL connects its ranks."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=order_inversion certainty=likely culprits=2 victims=0,1

import os

import torch
import torch.distributed as dist


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    value = torch.ones(64, device=device)
    experts = dist.new_group([0, 1, 2])
    for step in range(30):
        dist.all_reduce(value)
        if step == 20 and rank != 2:
            taken = torch.empty(3, device=device)
            dist.all_to_all_single(taken, torch.ones(3, device=device), group=experts)
        print(step, value[0].item())


if __name__ == "__main__":
    main()

# cause: rank_condition at `if step == 20 and rank != 2:`
