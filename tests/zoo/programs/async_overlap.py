"""Asynchronous collectives that are waited for late, while ranks compute unevenly."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    buckets = [torch.randn(1024) for _ in range(6)]
    for step in range(12):
        works = []
        for index, bucket in enumerate(buckets):
            works.append(dist.all_reduce(bucket, async_op=True))
            if (index + step) % world_size == rank:
                time.sleep(0.25)
        gathered = torch.empty(world_size * 16)
        works.append(dist.all_gather_into_tensor(gathered, buckets[0][:16], async_op=True))
        time.sleep(0.1 * rank)
        for work in reversed(works):
            work.wait()
        for bucket in buckets:
            bucket.div_(world_size)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
