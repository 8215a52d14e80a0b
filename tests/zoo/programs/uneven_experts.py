"""Tokens routed to experts unevenly: legal exchanges whose shapes differ on all ranks."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    for step in range(20):
        to = torch.randint(0, 6, (world_size,))
        from_others = torch.empty_like(to)
        dist.all_to_all_single(from_others, to)
        tokens = torch.randn(int(to.sum()), 8)
        received = torch.empty(int(from_others.sum()), 8)
        dist.all_to_all_single(received, tokens, from_others.tolist(), to.tolist())
        if step % world_size == rank:
            time.sleep(0.4)
        texts = [None] * world_size
        dist.all_gather_object(texts, "x" * int(to[0]) * 100)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
