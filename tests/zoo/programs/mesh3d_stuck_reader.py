"""Pipeline, data and tensor parallel on 2 x 2 x 2; the reader of one rank hangs.

Rank 5 needs labels for the last stage of its pipeline, and the file server is gone. The
ranks of the other replica come to a stop three groups away from it.
"""
# launched with --nproc-per-node=8
# expect: state=hang kind=never_entered reason=data_loading culprits=5 victims=0,1,2,3,4,6,7
# expect: op=all_reduce members=4,5 site=culprit certainty=likely|possible

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, Dataset


class Labels(Dataset):
    def __init__(self, hanging):
        self.hanging = hanging

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index == 40 and self.hanging:
            self.hanging.read_text()  # culprit
        return torch.full((16,), float(index % 2))


def forward_and_backward(stage, labels, mesh, weights):
    """One micro-batch; returns the gradient of the weights."""
    pp, tp = mesh["pp"].get_group(), mesh["tp"].get_group()
    peer = dist.get_global_rank(pp, 1 - pp.rank())
    activation = torch.randn(4, 16)
    if stage == 1:
        dist.recv(activation, src=peer, group=pp)
        target = next(labels)
    hidden = activation @ weights
    dist.all_reduce(hidden, group=tp)
    if stage == 0:
        dist.send(hidden, dst=peer, group=pp)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, src=peer, group=pp)
    else:
        gradient = hidden - target
        dist.send(gradient, dst=peer, group=pp)
    return activation.t() @ gradient


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    stage = mesh["pp"].get_local_rank()
    hanging = None
    if rank == 5:
        hanging = Path(tempfile.mkdtemp(), "labels.txt")
        os.mkfifo(hanging)
    labels = iter(DataLoader(Labels(hanging), batch_size=4, num_workers=1)) if stage == 1 else None
    torch.manual_seed(stage)
    weights = torch.randn(16, 16)
    for _ in range(50):
        gradient = forward_and_backward(stage, labels, mesh, weights)
        dist.all_reduce(gradient, group=mesh["dp"].get_group())
        weights -= 1e-4 * gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `self.hanging.read_text()`
