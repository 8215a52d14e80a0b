"""One rank saw fewer classes, so its metric tensor is shorter in the all_reduce."""
# expect: state=hang kind=signature_mismatch certainty=proved culprits=1
# expect: op=all_reduce group=default_pg site=culprit

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def per_class_errors(predicted, labels):
    return torch.zeros(int(labels.max()) + 1).index_add_(0, labels, (predicted != labels).float())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 41):
        labels = torch.arange(16) % 4
        if rank == 1 and step == 12:
            labels = labels.clamp(max=2)
        logits = model(torch.randn(16, 16))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors = per_class_errors(logits.argmax(dim=1), labels)
        dist.all_reduce(errors)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: different_argument at `return torch...`
