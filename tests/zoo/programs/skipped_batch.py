"""A rank drops a batch that its filter empties: from there on its calls pair with later ones.

Each step has two calls of one size, so that everything fits until the others find it gone: a
look that comes before that finds it out of step.
"""
# expect: state=hang kind=op_mismatch certainty=proved culprits=1 victims=0,2,3
# expect: group=default_pg site=culprit may_be=desync

import torch
import torch.distributed as dist


def long_enough(batch):
    return [sample for sample in batch if len(sample) > 2]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator, critic = torch.zeros(64), torch.zeros(64)
    for step in range(40):
        batch = ["short" * (step % 3)] * 4 if rank == 1 and step == 30 else ["a sentence"] * 4
        gradient = torch.randn(64)
        if long_enough(batch):
            dist.all_reduce(gradient)
            generator -= 0.01 * gradient
        dist.all_reduce(gradient)  # culprit
        critic -= 0.01 * gradient
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: data_condition at `if long_enough(batch):`
