"""parallelize_module within pairs and fully_shard across them, on a 2 x 2 mesh."""
# expect: state=ok exit=0
# With --accumulate one rank does not sync the gradients of a step that the others sync.
# expect --accumulate: state=hang kind=op_mismatch culprits=1 victims=0,2,3
# expect --accumulate: members=1,3 certainty=likely|possible

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STYLES = {"up": ColwiseParallel(), "down": RowwiseParallel()}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, inputs):
        return self.down(self.up(inputs).relu())


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(), Layer())
    for layer in model:
        parallelize_module(layer, mesh["tp"], STYLES)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    accumulates = "--accumulate" in sys.argv and dist.get_rank() == 1
    for step in range(16):
        torch.manual_seed(100 * step + mesh["dp"].get_local_rank())
        model.set_requires_gradient_sync(not (accumulates and step == 6))
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
    weights = [weight.full_tensor() for weight in model.parameters()]
    assert all(weight.isfinite().all() for weight in weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --accumulate: no_sync at `model.set_requires_gradient_sync(not (accumulates...`
