"""A rank that has nothing to bring leaves out the call of all ranks, between those of a pair."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=order_inversion certainty=likely culprits=1 victims=0,2

import os

import torch
import torch.distributed as dist


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    pair, everyone = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    for step in range(60):
        hidden = torch.ones(512, device=device)
        if rank in (0, 1):
            dist.all_reduce(hidden, group=pair)
        if rank == 1 and step == 40:
            hidden = hidden[:0]
        if hidden.numel():
            dist.all_reduce(hidden, group=everyone)
        print(step, hidden.sum().item())


if __name__ == "__main__":
    main()

# cause: data_condition at `if hidden.numel():`
