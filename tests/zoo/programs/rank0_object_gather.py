"""Rank 0 alone gathers statistics with a collective after 20 steps; the others go on."""
# expect: state=hang kind=subset_entered certainty=proved culprits=0 victims=1,2,3
# expect: op=all_gather_object group=default_pg site=culprit

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def log_statistics(step, loss):
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"step": step, "loss": loss})  # culprit
    print(f"step {step}: {gathered}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 101):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # victim
        optimizer.step()
        if step == 20 and rank == 0:
            log_statistics(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if step == 20 and rank == 0:`
