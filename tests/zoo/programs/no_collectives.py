"""A job that needs no collective for 13 s between two phases of training."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    gradient = torch.randn(64)
    for _ in range(20):
        dist.all_reduce(gradient)
    end = time.monotonic() + 13
    while time.monotonic() < end:
        torch.randn(64, 64) @ torch.randn(64, 64)
        time.sleep(0.05)
    for _ in range(20):
        dist.all_reduce(gradient)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
