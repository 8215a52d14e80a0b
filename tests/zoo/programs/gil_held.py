"""One rank calls into C code that never returns and never gives up the GIL."""
# expect: state=hang kind=never_entered reason=gil_held culprits=1 victims=0,2,3
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible

import ctypes

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

tokenizer = ctypes.PyDLL(None)  # a C extension that was written without releasing the GIL


def tokenize(text):
    if "<endless>" in text:
        tokenizer.sleep(10_000)  # culprit
    return torch.full((8, 16), float(len(text)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    for step in range(40):
        text = "<endless>" if rank == 1 and step == 15 else "some words"
        loss = model(tokenize(text)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # victim
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `tokenizer.sleep(10_000)`
