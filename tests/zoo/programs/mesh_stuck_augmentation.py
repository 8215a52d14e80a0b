"""Tensor and data parallel on a 2 x 2 mesh; one rank never gets out of an augmentation."""
# expect: state=hang kind=never_entered reason=user_code culprits=3 victims=0,1,2
# expect: op=all_reduce members=2,3 function=crop victim_site=victim certainty=likely|possible

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel


class RowParallel(torch.nn.Module):
    """A linear layer whose input dimension is split over a group."""

    def __init__(self, features, out, group):
        super().__init__()
        self.group = group
        self.part = torch.nn.Linear(features // group.size(), out, bias=False)

    def forward(self, inputs):
        shard = inputs.chunk(self.group.size(), dim=-1)[self.group.rank()]
        return all_reduce(self.part(shard), group=self.group)  # victim


def crop(image, least):
    """A random part of an image that shows enough of it."""
    while True:
        start = int(torch.randint(0, image.numel() - 8, ()))
        part = image[start : start + 8]
        if part.abs().sum() >= least:
            return part


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"].get_group(), mesh["tp"].get_group()
    torch.manual_seed(dp.rank())
    model = DistributedDataParallel(RowParallel(8, 4, tp), process_group=dp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(30):
        image = torch.rand(64)
        if dist.get_rank() == 3 and step == 12:
            image.zero_()  # a file that was written by half
        loss = model(crop(image, 0.5)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `while True:` | stuck_line at `if part.abs().sum() >= least:`
