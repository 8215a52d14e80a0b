"""The source of broadcasts is done long before the others, who take their time."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.randn(64)
    for _ in range(40):
        dist.broadcast(weights, src=0)
        if rank > 0:
            time.sleep(0.05 * rank)
    if rank == 0:
        print("all weights are sent", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
