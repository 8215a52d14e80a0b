"""Hybrid sharded data parallel on 2 x 2; one rank is stopped by SIGSTOP between two steps."""
# expect: state=hang kind=never_entered reason=stopped culprits=2 victims=0,1,3
# expect: members=2,3 site=culprit victim_site=victim certainty=likely|possible

import os
import signal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(20):
        if dist.get_rank() == 2 and step == 6:
            os.kill(os.getpid(), signal.SIGSTOP)  # culprit
        loss = model(torch.randn(8, 32)).square().mean()  # victim
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `os.kill(os.getpid(), signal.SIGSTOP)`
