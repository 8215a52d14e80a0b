"""A rank takes its time to destroy a subgroup, as NCCL may, while the others go on without it."""
# watched with --suspect-after=3
# expect: state=slow kind=never_entered reason=user_code culprits=0 victims=1,2,3
# expect: op=all_reduce group=default_pg site=slow exit=0

import time

import torch
import torch.distributed as dist

shutdown = dist.ProcessGroup.shutdown


def slow(group):
    if group.size() == 2 and dist.get_rank() == 0:
        time.sleep(8)  # slow
    return shutdown(group)


def main():
    dist.init_process_group("gloo")
    dist.ProcessGroup.shutdown = slow  # gloo alone has nothing to wait for there
    rank = dist.get_rank()
    warm_up = dist.new_group([0, 1])
    metric = torch.ones(4)
    for _ in range(5):
        dist.all_reduce(metric)
        metric /= dist.get_world_size()
    if rank < 2:
        dist.destroy_process_group(warm_up)
    for _ in range(5):
        dist.all_reduce(metric)
        metric /= dist.get_world_size()
    assert metric[0].item() == 1.0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(8)`
