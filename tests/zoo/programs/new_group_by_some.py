"""A group is made below a condition, so two ranks never call new_group, one of them a member."""
# expect: state=hang kind=init_incomplete culprits=2,3 victims=0,1
# expect: site=culprit victim_site=victim certainty=possible

import torch
import torch.distributed as dist

TEACHERS = [0, 1, 2]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.randn(64)
    dist.all_reduce(weights)
    group = None
    if rank < 2:  # written when there were two teachers
        group = dist.new_group(TEACHERS)  # victim
    for _ in range(30):
        gradient = torch.randn(64)
        dist.all_reduce(gradient)  # culprit
        if group is not None:
            dist.broadcast(weights, src=0, group=group)
        weights -= 0.01 * gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: group_creation at `if rank < 2:` | rank_condition at `if rank < 2:`
