"""A synchronised batch norm stands in an auxiliary head that one rank does not run."""
# expect: state=hang kind=op_mismatch certainty=proved culprits=2
# expect: victims=0,1,3 group=default_pg

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class SyncedNorm(torch.nn.Module):
    """What torch.nn.SyncBatchNorm does, which is for GPUs alone."""

    def forward(self, inputs):
        local = torch.stack([inputs.mean(0), inputs.square().mean(0)])
        everyone = torch.empty(dist.get_world_size() * 2, inputs.shape[1])
        dist.all_gather_into_tensor(everyone, local.detach())  # victim
        mean, square = everyone.view(-1, 2, inputs.shape[1]).mean(0)
        return (inputs - mean) / (square - mean.square() + 1e-5).sqrt()


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Linear(16, 32)
        self.boxes = torch.nn.Sequential(SyncedNorm(), torch.nn.Linear(32, 4))
        self.head = torch.nn.Linear(32, 4)

    def forward(self, images, *, boxes):
        hidden = self.stem(images).relu()
        output = self.head(hidden)
        if boxes.any():
            return output + self.boxes(hidden)
        return output


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Network(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(30):
        boxes = torch.ones(8)
        if rank == 2 and step == 13:
            boxes.zero_()  # none of these images shows anything
        loss = model(torch.randn(8, 16), boxes=boxes).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: data_condition at `if boxes.any():`
