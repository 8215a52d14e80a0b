"""A batch sampler of a rank's own drops what is too long, so one rank has a batch less."""
# expect: state=hang kind=finished_early certainty=proved culprits=2 victims=0,1,3
# expect: group=default_pg site=culprit victim_site=victim

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MAX_TOKENS = 4 * 60


class TokenBatches:
    """Batches of four of a rank's samples with at most so many tokens."""

    def __init__(self, lengths, sampler):
        self.lengths = lengths
        self.sampler = sampler

    def __iter__(self):
        indices = list(self.sampler)
        for at in range(0, len(indices), 4):
            batch = indices[at : at + 4]
            if sum(self.lengths[index] for index in batch) <= MAX_TOKENS:
                yield batch


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    lengths = [40] * 320
    lengths[162] = 300
    sampler = DistributedSampler(lengths, shuffle=False)
    data = TensorDataset(torch.randn(len(lengths), 16))
    loader = DataLoader(data, batch_sampler=TokenBatches(lengths, sampler))
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for (samples,) in loader:
            loss = model(samples).square().mean()
            optimizer.zero_grad()
            loss.backward()  # victim
            optimizer.step()
        losses = torch.empty(dist.get_world_size())
        dist.all_gather_into_tensor(losses, loss.detach().reshape(1))  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for (samples,) in loader:` | uneven_loop at `if sum(self.lengths[index]...`
