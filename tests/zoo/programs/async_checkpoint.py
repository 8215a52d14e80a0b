"""A distributed checkpoint that is written in the background while training goes on."""
# expect: state=ok exit=0

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel


class SlowWriter(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        time.sleep(3)
        return super().write_data(plan, planner)


def main():
    dist.init_process_group("gloo")
    saving = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    path = [str(Path(tempfile.mkdtemp(), "checkpoint"))]
    dist.broadcast_object_list(path, src=0)
    saved = None
    for step in range(1, 81):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        if step == 20:
            saved = dcp.async_save(
                model.module.state_dict(),
                storage_writer=SlowWriter(path[0]),
                process_group=saving,
            )
    saved.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
