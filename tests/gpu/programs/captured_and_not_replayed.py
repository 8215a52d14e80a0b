"""A rank leaves out one replay of a graph that has a collective in it."""
# launched with --nproc-per-node=2
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang certainty=possible culprits=none

import os

import torch
import torch.distributed as dist


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    values = torch.ones(256, device=device)
    for _ in range(3):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values.mul_(0.5)
        dist.all_reduce(values)
    for step in range(100):
        if dist.get_rank() != 1 or step != 70:
            graph.replay()
        torch.cuda.synchronize()
        print(step)


if __name__ == "__main__":
    main()
