"""Rank 0 alone evaluates after the last epoch, and reduces its metric; the others are done."""
# expect: state=hang kind=subset_entered certainty=proved culprits=0 victims=1,2,3
# expect: op=reduce group=default_pg site=culprit

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def evaluate(model):
    correct = torch.zeros(1)
    with torch.no_grad():
        for _ in range(10):
            logits = model(torch.randn(8, 16))
            correct += (logits.argmax(dim=1) == torch.randint(4, (8,))).sum()
    dist.reduce(correct, dst=0)  # culprit
    return correct / (80 * dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"accuracy: {evaluate(model.module).item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if dist.get_rank() == 0:`
