"""One of three ranks uses two groups of all ranks in the other order once."""
# launched with --nproc-per-node=3
# watched with --suspect-after 14 --hang-after 18
# expect: state=hang kind=order_inversion certainty=likely culprits=1 victims=0,2

import os

import torch
import torch.distributed as dist


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    everyone = range(dist.get_world_size())
    one, two = dist.new_group(everyone), dist.new_group(everyone)
    first, second = torch.ones(2048, device=device), torch.ones(2048, device=device)
    for step in range(60):
        calls = [(first, one), (second, two)]
        if dist.get_rank() == 1 and step == 40:
            calls.reverse()
        for tensor, group in calls:
            dist.all_reduce(tensor, group=group)
            torch.cuda.synchronize()
        print(step)


if __name__ == "__main__":
    main()
