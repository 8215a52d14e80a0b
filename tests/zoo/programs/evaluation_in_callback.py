"""Of two ranks the first one evaluates in a callback of the training loop, which is not the user's.

The other goes on to the gradients of the step. The callback stands in no function that
the other is in. torchrun leaves that some seconds, in which what C++ did in it can be read.
"""
# expect: state=failed kind=subset_entered certainty=likely culprits=0 victims=1
# expect: op=all_reduce group=default_pg site=culprit
# launched with --nproc-per-node=2 --monitor-interval=3

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Evaluate:
    def __init__(self, process_index):
        self.process_index = process_index
        self.steps = 0

    def __call__(self, _module, _inputs, output):
        self.steps += 1
        if self.steps == 15 and self.process_index == 0:
            accuracy = (output.argmax(dim=1) == 0).float().mean()
            dist.all_reduce(accuracy)  # culprit
            print(f"accuracy: {accuracy.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    model.register_forward_hook(Evaluate(dist.get_rank()))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if self.steps == 15 and self.process_index == 0:`
