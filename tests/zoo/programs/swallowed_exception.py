"""One rank swallows an exception and goes on one collective short of the others."""
# expect: state=hang kind=op_mismatch certainty=proved culprits=2 victims=0,1,3
# expect: op=all_gather_into_tensor group=default_pg site=culprit

import torch
import torch.distributed as dist


def train_step(rank, step, weights):
    if rank == 2 and step == 15:
        raise ValueError("corrupt sample")
    gradient = torch.randn(64)
    dist.all_reduce(gradient)  # victim
    weights -= 0.01 * gradient / dist.get_world_size()
    return weights.norm().reshape(1)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    weights = torch.zeros(64)
    norm = torch.zeros(1)
    for step in range(40):
        try:
            norm = train_step(rank, step, weights)
        except ValueError as error:
            print(f"rank {rank}: {error}, batch left out", flush=True)
        norms = torch.empty(world_size)
        dist.all_gather_into_tensor(norms, norm)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `except ValueError as error:`
