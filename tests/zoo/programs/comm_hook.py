"""DDP with a communication hook that makes a collective of its own for each bucket."""
# expect: state=ok exit=0
# With --skip the hook of one rank once finds its gradients too small to be worth it.
# expect --skip: state=failed kind=signature_mismatch culprits=2
# expect --skip: op=all_reduce group=default_pg site=culprit certainty=proved|likely

import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # at once: what it is imported after stays the default of its functions
from torch.nn.parallel import DistributedDataParallel


def scaled(state, bucket):
    """Reduce a bucket after all ranks have agreed on its largest value."""
    state["buckets"] += 1
    gradient = bucket.buffer()
    if "--skip" in sys.argv and dist.get_rank() == 2 and state["buckets"] == 20:
        done = torch.futures.Future()
        done.set_result(gradient)
        return done
    largest = gradient.abs().max().reshape(1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    share = gradient / (largest * dist.get_world_size())
    work = dist.all_reduce(share, async_op=True)  # culprit
    return work.get_future().then(lambda future: future.value()[0] * largest)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    # A bucket for each layer, the last one of another size.
    network.append(torch.nn.Linear(64, 4))
    model = DistributedDataParallel(network, bucket_cap_mb=0.005)
    model.register_comm_hook({"buckets": 0}, scaled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Without a reference to the group its threads end here. One that still drops what it ran for
    # the hook would abort a process whose interpreter shuts down.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --skip: rank_condition at `if "--skip" in sys.argv and...` | early_exit at `return done`
