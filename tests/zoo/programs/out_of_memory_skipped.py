"""One rank catches that it ran out of memory and leaves the batch out; the others do not.

It is one gradient short from there on, and comes to the end of the epoch before the others.
"""
# expect: state=hang kind=finished_early certainty=proved culprits=3 victims=0,1,2
# expect: group=default_pg site=culprit victim_site=victim

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def features(length):
    return torch.zeros(length, 16)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        try:
            length = 1 << 43 if rank == 3 and step == 17 else 8
            loss = model(features(length)).square().mean()
            optimizer.zero_grad()
            loss.backward()  # victim
            optimizer.step()
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            print(f"rank {rank}: out of memory, batch {step} left out", flush=True)
    means = [None] * dist.get_world_size()
    dist.all_gather_object(means, float(loss))  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `except RuntimeError as error:`
