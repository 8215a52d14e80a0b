"""torch.compile takes its time on the first step, and on each rank another time."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def patient_backend(graph, example_inputs):
    """As inductor with max-autotune, which tries many kernels."""
    del example_inputs
    time.sleep(1 + 2 * dist.get_rank())
    return graph.forward


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = DistributedDataParallel(torch.compile(network, backend=patient_backend))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
