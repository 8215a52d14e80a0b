"""Ranks issue a step's buckets asynchronously; one stops in between and issues no more."""
# expect: state=hang kind=never_entered reason=user_code culprits=3 victims=0,1,2
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible

import time

import torch
import torch.distributed as dist


def compress(gradient, *, stuck):
    if stuck:
        time.sleep(10_000)  # culprit
    return gradient.half().float()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradients = [torch.randn(64 * size) for size in range(1, 9)]
    for step in range(20):
        works = []
        for index, gradient in enumerate(gradients):
            stuck = rank == 3 and step == 8 and index == 5
            gradients[index] = compress(gradient, stuck=stuck)
            works.append(dist.all_reduce(gradients[index], async_op=True))
        for work in reversed(works):
            work.wait()
        for gradient in gradients:
            gradient.div_(dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(10_000)`
