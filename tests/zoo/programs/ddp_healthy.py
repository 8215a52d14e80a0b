"""DDP with several buckets, buffers and an evaluation; it finishes."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))] * 4
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers, torch.nn.Linear(64, 4)), bucket_cap_mb=0.01
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 61):
        images, labels = torch.randn(16, 64), torch.randint(4, (16,))
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            dist.all_reduce(loss.detach())
            losses = [None] * dist.get_world_size()
            dist.all_gather_object(losses, loss.item())
    dist.barrier()
    dist.destroy_process_group()
    # In torch 2.4 a group that is freed while its thread frees a tensor is a deadlock.
    time.sleep(1)


if __name__ == "__main__":
    main()
