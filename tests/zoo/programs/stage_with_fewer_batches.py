"""A stage of a pipeline divides its batch otherwise in one step, and leaves a micro-batch out."""
# expect: state=hang kind=missing_peer culprits=2 certainty=likely

import torch
import torch.distributed as dist


class Stage:
    def __init__(self, rank, last):
        self.rank, self.last = rank, last
        self.activation = torch.zeros(4)

    def forward(self):
        if self.rank > 0:
            dist.recv(self.activation, self.rank - 1)
        if self.rank < self.last:
            dist.send(self.activation * 1.1, self.rank + 1)

    def backward(self):
        gradient = torch.ones(4)
        if self.rank < self.last:
            dist.recv(gradient, self.rank + 1)
        if self.rank > 0:
            dist.send(gradient * 0.9, self.rank - 1)


def micro_batches(rank, step):
    rows = 32 if (rank, step) != (2, 7) else 25
    return rows // 8


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = Stage(rank, dist.get_world_size() - 1)
    for step in range(12):
        count = micro_batches(rank, step)
        for _ in range(count):
            stage.forward()
        for _ in range(count):
            stage.backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for _ in range(count):` (38)
