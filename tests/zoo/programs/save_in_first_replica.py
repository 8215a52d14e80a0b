"""The first replica of a 2 x 2 mesh writes a checkpoint and then calls a barrier of all."""
# expect: state=hang kind=subset_entered culprits=0,1 victims=2,3
# expect: op=barrier group=default_pg site=culprit certainty=likely|possible

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel


def save(model, step):
    path = Path(tempfile.mkdtemp(), f"step-{step}.pt")
    torch.save(model.state_dict(), path)
    dist.barrier()  # culprit


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"].get_group(), mesh["tp"].get_group()
    torch.manual_seed(tp.rank())
    model = DistributedDataParallel(torch.nn.Linear(16, 4), process_group=dp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dp_rank = dp.rank()
    for step in range(1, 31):
        output = model(torch.randn(8, 16))
        norm = output.detach().norm()
        dist.all_reduce(norm, group=tp)
        optimizer.zero_grad()
        (output / norm).square().mean().backward()
        optimizer.step()
        dist.all_reduce(norm)  # the log's mean over all ranks
        if step == 10 and dp_rank == 0:
            save(model.module, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if step == 10 and dp_rank == 0:`
