"""One rank's branch leaves parameters unused, so its gradients are never all reduced.

torchrun leaves the others some seconds, in which what C++ did in them can be read.
"""
# launched with --monitor-interval=3
# expect: state=failed kind=signature_mismatch lost=op_mismatch culprits=2
# expect: op=all_reduce group=default_pg site=culprit certainty=proved|likely

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


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    # Without find_unused_parameters, and with a bucket for each layer.
    model = DistributedDataParallel(Network(), bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 21):
        loss = model(torch.randn(4, 64), adapt=not (rank == 2 and step == 6)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: unused_parameter at `if adapt:` | unused_parameter at `loss = model(torch.randn(4, 64)...`
