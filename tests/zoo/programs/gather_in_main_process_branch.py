"""Of two ranks the main process alone gathers predictions, inside the function that both call.

The other has come out of that function and waits in the barrier after it. There is no
majority: only the condition tells who left the common program.
"""
# expect: state=hang kind=subset_entered certainty=likely culprits=0 victims=1
# expect: op=all_gather group=default_pg site=culprit victim_site=victim
# launched with --nproc-per-node=2

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Accelerator:
    def __init__(self):
        dist.init_process_group("gloo")
        self.process_index = dist.get_rank()

    @property
    def is_main_process(self):
        return self.process_index == 0

    def gather(self, tensor):
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor)  # culprit
        return torch.cat(parts)

    def wait_for_everyone(self):
        dist.barrier()  # victim


def evaluate(accelerator, model):
    predictions = []
    with torch.no_grad():
        for _ in range(10):
            logits = model(torch.randn(8, 16))
            if accelerator.is_main_process:
                predictions.append(accelerator.gather(logits.argmax(dim=1)))
    return predictions


def main():
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    evaluate(accelerator, model.module)
    accelerator.wait_for_everyone()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if accelerator.is_main_process:`
