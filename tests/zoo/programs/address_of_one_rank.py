"""One rank is told to use a network interface that its machine does not have."""
# launched with --nproc-per-node=3
# expect: state=failed kind=died reason=exception certainty=proved culprits=1 victims=0,2
# expect: site=culprit exit=1 text=eth99

import os

import torch
import torch.distributed as dist


def main():
    if os.environ["RANK"] == "1":
        os.environ["GLOO_SOCKET_IFNAME"] = "eth99"
    dist.init_process_group("gloo")  # culprit
    dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: process_gone at `dist.init_process_group("gloo")`
