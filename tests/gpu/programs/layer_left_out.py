"""A rank leaves out one of the layers whose gradients are reduced beside the program."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=finished_early certainty=proved culprits=2 victims=0,1

import os

import torch
import torch.distributed as dist


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    frozen = {3} if dist.get_rank() == 2 else set()
    for step in range(50):
        works = []
        for layer in range(4):
            gradient = torch.ones(4096, device=device)
            if step == 30 and layer in frozen:
                continue
            works.append(dist.all_reduce(gradient, async_op=True))
        for work in works:
            work.wait()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()

# cause: skipped_iteration at `continue` | rank_condition at `if step...`
