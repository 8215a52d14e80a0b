"""DDP that finds unused parameters on each rank anew, and DDP over a static graph."""
# expect: state=ok exit=0
# With --changed the static graph of one rank is once not what it was.
# expect --changed: state=failed kind=died reason=exception culprits=3 site=culprit certainty=proved

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Linear(64, 64)
        self.adapter = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 4)

    def forward(self, inputs, *, adapt):
        hidden = self.stem(inputs)
        if adapt:
            hidden = self.adapter(hidden)
        return self.head(hidden)


def train(model, adapts):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for adapt in adapts:
        loss = model(torch.randn(4, 64), adapt=adapt).sum()  # culprit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    finding = DistributedDataParallel(Network(), bucket_cap_mb=0.005, find_unused_parameters=True)
    train(finding, [(step + rank) % 3 != 0 for step in range(15)])
    static = DistributedDataParallel(Network(), bucket_cap_mb=0.005, static_graph=True)
    changes = "--changed" in sys.argv and rank == 3
    train(static, [not (changes and step == 8) for step in range(15)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --changed: unused_parameter at `if adapt:` | process_gone at `loss = model(...`
