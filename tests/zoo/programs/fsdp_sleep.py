"""FSDP2 (fully_shard) in which one rank sleeps in its own code between two steps."""
# expect: state=hang kind=never_entered reason=user_code culprits=2 victims=0,1,3 group=default_pg
# The operation is called as this torch calls it.
# expect: op=all_gather_single|all_gather_into_tensor site=culprit certainty=likely|possible

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def augment(batch, *, slow):
    if slow:
        time.sleep(10_000)  # culprit
    return batch + 0.01 * torch.randn_like(batch)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(20):
        batch = augment(torch.randn(8, 32), slow=rank == 2 and step == 5)
        loss = model(batch).square().mean()  # victim
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(10_000)`
