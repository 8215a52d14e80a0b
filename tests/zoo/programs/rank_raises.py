"""One rank raises in its own code; the others fail after it, in the collective."""
# expect: state=failed kind=died reason=exception certainty=proved culprits=3
# expect: group=default_pg site=culprit exit=1 text=KeyError

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = {f"token{index}": index for index in range(32)}


def encode(words):
    return torch.tensor([VOCABULARY[word] for word in words])  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Embedding(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        words = [f"token{(step + offset) % 32}" for offset in range(4)]
        if rank == 3 and step == 10:
            words[2] = "<mask>"
        loss = model(encode(words)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # victim
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: process_gone at `return torch.tensor([VOCABULARY[word] for word in words])`
