"""An object that clips gradients reduces their norm only where it is too large, on one rank."""
# expect: state=hang|failed kind=subset_entered|op_mismatch culprits=3 certainty=likely
# expect: site=culprit

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

OVERFLOW = (3, 13)
"""A rank, and the step at which its gradient explodes."""


class Clip:
    def __init__(self, limit, group):
        self.limit, self.group = limit, group

    def __call__(self, gradient):
        norm = gradient.norm()
        if norm > self.limit:
            total = torch.empty(2, 1)
            dist.all_gather_into_tensor(total, norm.reshape(1), group=self.group)  # culprit
            gradient.mul_(self.limit / total.norm())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    clip = Clip(50.0, mesh.get_group("tp"))
    for step in range(40):
        gradient = torch.ones(16)
        dist.all_reduce(gradient, group=mesh.get_group("dp"))
        if (rank, step) == OVERFLOW:
            gradient *= 1000
        clip(gradient)
        activation = torch.ones(8)
        dist.all_reduce(activation, group=mesh.get_group("tp"))  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: data_condition at `if norm > self.limit:`
