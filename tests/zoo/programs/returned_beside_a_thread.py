"""One rank stops early and returns from its program, which a thread keeps from ending."""
# launched with --nproc-per-node=3
# expect: state=hang kind=finished_early culprits=2 victims=0,1
# expect: certainty=likely

import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def beat(over):
    while not over.wait(1.0):
        pass


def evaluate(model, step):
    """The loss on the part of the data that this rank has."""
    best = dist.get_rank() == 2 and step == 25
    return 0.001 if best else 0.5 + model.module.bias.abs().sum().item()


def main():
    dist.init_process_group("gloo")
    over = threading.Event()
    threading.Thread(target=beat, args=(over,), name="heartbeat").start()
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    for step in range(60):
        model(torch.randn(8, 16)).square().mean().backward()  # victim
        if evaluate(model, step) < 0.01:
            return
    over.set()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: early_exit at `return` | data_condition at `if evaluate(model, step) < 0.01:`
