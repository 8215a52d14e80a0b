"""A stream leaves near-silent clips out, and the loss gathers the embeddings of all ranks."""
# launched with --nproc-per-node=3
# expect: state=hang|failed kind=signature_mismatch culprits=2 certainty=proved|likely
# expect: op=all_gather site=culprit

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Clips:
    """Batches of clips, two views of each."""

    def __init__(self, rank, batch=8):
        self.rank = rank
        self.batch = batch
        self.turn = 0
        self.generator = torch.Generator().manual_seed(rank)

    def __iter__(self):
        return self

    def __next__(self):
        clips = torch.randn(self.batch, 12, generator=self.generator) + 3
        self.turn += 1
        if self.turn == 25 and self.rank == 2:
            clips[3] *= 1e-3
        clips = clips[clips.norm(dim=1) > 0.05]
        return clips, clips + 0.1


def gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)  # culprit
    return torch.cat(parts)


class Contrast(nn.Module):
    def forward(self, first, second):
        second = nn.functional.normalize(second, dim=1)
        keys = gather(second.detach())
        target = torch.arange(len(first))
        return nn.functional.cross_entropy(first @ keys.T, target)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(12, 4))
    loss_of = Contrast()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (first, second) in enumerate(Clips(dist.get_rank())):
        if step == 40:
            break
        with torch.no_grad():
            keys = model.module(second)
        loss = loss_of(model(first), keys)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: different_argument at `clips = clips[clips.norm(dim=1) > 0.05]`
