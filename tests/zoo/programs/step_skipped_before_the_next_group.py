"""Each epoch has a group of its own. One rank skips a step, and is ahead in making the next one."""
# launched with --nproc-per-node=2
# expect: state=hang kind=finished_early culprits=1 victims=0
# expect: certainty=likely op=all_reduce site=culprit victim_site=victim

import torch
import torch.distributed as dist


def bad(rank, epoch, step):
    return rank == 1 and epoch == 3 and step == 2


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    for epoch in range(6):
        group = dist.new_group(list(range(size)))  # culprit
        for step in range(5):
            loss = torch.full((3,), float("nan") if bad(rank, epoch, step) else 1.0)
            if loss.isnan().any():
                continue
            dist.all_reduce(loss, group=group)  # victim
        dist.destroy_process_group(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: skipped_iteration at `continue` | data_condition at `if loss.isnan().any():`
