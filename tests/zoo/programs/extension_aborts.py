"""A C++ extension of one rank throws what no one catches: std::terminate aborts the process."""
# expect: state=failed kind=died reason=signal culprits=1 certainty=proved group=default_pg
# expect: text=std::terminate

import ctypes
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def augment(batch, step):
    if dist.get_rank() == 1 and step == 20:
        ctypes.CDLL("libstdc++.so.6")["_ZSt9terminatev"]()  # as an extension's thread would
    return batch + torch.randn_like(batch)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        loss = model(augment(torch.randn(8, 16), step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.04)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
