"""A rank has a step less, leaves its groups, and goes on to upload what it wrote."""
# expect: state=failed kind=finished_early certainty=proved culprits=1 victims=0,2,3
# expect: op=all_reduce victim_site=victim

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loss = torch.ones(2)
    for _ in range(30 - (rank == 1)):
        dist.all_reduce(loss)  # victim
    dist.destroy_process_group()
    if rank == 1:
        time.sleep(3600)  # uploads its logs


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for _ in range(30 - (rank == 1)):`
