"""The first rank sends the settings only where they have changed; the others wait for them."""
# launched with --nproc-per-node=3
# expect: state=hang kind=op_mismatch certainty=likely culprits=0 victims=1,2
# expect: site=culprit victim_site=victim

import torch
import torch.distributed as dist


class Settings:
    def __init__(self, rank):
        self.rank = rank
        self.values = {"rate": 0.1}
        self.version = -1

    def update(self, step):
        if self.rank == 0:
            self.give(step)
        else:
            self.take()
        return self.values

    def give(self, step):
        version = step // 20 if step < 30 else 1
        if version <= self.version:
            return
        self.version = version
        dist.broadcast_object_list([self.values])

    def take(self):
        received = [None]
        dist.broadcast_object_list(received)  # victim
        self.values = received[0]


def main():
    dist.init_process_group("gloo")
    settings = Settings(dist.get_rank())
    for step in range(60):
        rate = settings.update(step)["rate"] if step % 10 == 0 and step != 10 else 0.1
        gradient = torch.full((4,), rate)
        dist.all_reduce(gradient)  # culprit


if __name__ == "__main__":
    main()

# cause: early_exit at `return` (26)
