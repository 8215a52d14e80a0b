"""A rank leaves its group early and is busy for a while; the others wrap what c10d raises."""
# expect: state=failed kind=finished_early reason=exited culprits=2 victims=0,1
# expect: op=all_reduce group=default_pg certainty=proved|likely
# launched with --nproc-per-node=3

import time

import torch
import torch.distributed as dist


def reduced(step):
    try:
        dist.all_reduce(torch.ones(8))  # victim
    except RuntimeError as error:
        raise ValueError(f"step {step} failed") from error


def main():
    dist.init_process_group("gloo")
    for step in range(30 if dist.get_rank() == 2 else 100):
        reduced(step)
    dist.destroy_process_group()
    time.sleep(5)


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for step in range(30 if dist.get_rank() == 2 else 100):`
