"""Ranks of a ring exchange their edges; in one step one of them takes a rank for its neighbour."""
# expect: state=hang kind=missing_peer culprits=1 certainty=likely

import torch
import torch.distributed as dist


class Grid:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.cells = torch.full((6,), float(rank))

    def neighbours(self, step):
        reach = 1 if (self.rank, step) != (1, 11) else 2
        return (self.rank - 1) % self.size, (self.rank + reach) % self.size

    def exchange(self, step):
        left, right = self.neighbours(step)
        first, last = torch.empty(1), torch.empty(1)
        messages = [
            dist.P2POp(dist.isend, self.cells[1:2].clone(), left),
            dist.P2POp(dist.isend, self.cells[-2:-1].clone(), right),
            dist.P2POp(dist.irecv, first, left),
            dist.P2POp(dist.irecv, last, right),
        ]
        for message in dist.batch_isend_irecv(messages):
            message.wait()
        self.cells[0], self.cells[-1] = first, last


def main():
    dist.init_process_group("gloo")
    grid = Grid(dist.get_rank(), dist.get_world_size())
    for step in range(25):
        grid.exchange(step)
        grid.cells *= 0.5
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: different_argument at `for message in...` | different_argument at `message.wait()`
