"""A hook that averages over all ranks is registered on the first one alone."""
# launched with --nproc-per-node=3
# expect: state=hang kind=subset_entered certainty=proved|likely culprits=0 victims=1,2
# expect: op=all_reduce site=culprit victim_site=victim

import torch
import torch.distributed as dist


class Timer:
    def after(self, step, _loss):
        if step % 20 == 0:
            print("at step", step)


class Average:
    def __init__(self, every):
        self.every = every

    def after(self, step, loss):
        if step % self.every:
            return
        mean = loss.clone()
        dist.all_reduce(mean)  # culprit
        print("loss", mean / dist.get_world_size())


def hooks_of(rank):
    hooks = [Timer()]
    if rank == 0:
        hooks.append(Average(every=15))
    return hooks


def train(hooks, steps):
    for step in range(1, steps + 1):
        loss = torch.ones(1)
        dist.broadcast(loss, src=0)  # victim
        for hook in hooks:
            hook.after(step, loss)


def main():
    dist.init_process_group("gloo")
    train(hooks_of(dist.get_rank()), 60)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if rank == 0:`
