"""DDP over uneven inputs under the Join context manager, which makes that legal."""
# expect: state=ok exit=0
# --metric adds a collective that Join does not shadow; torchrun leaves time to read what C++ did.
# expect --metric: state=failed kind=signature_mismatch culprits=0 op=all_reduce group=default_pg
# expect --metric: certainty=proved|likely lost=died
# launched with --monitor-interval=3

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model]):
        for _ in range(20 + 15 * rank):
            loss = model(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "--metric" in sys.argv:
                dist.all_reduce(loss.detach())
            time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --metric: uneven_loop at `for _ in range(20 + 15 * rank):`
