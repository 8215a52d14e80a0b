"""A context manager that compares timings swallows what its block raises, on one rank."""
# launched with --nproc-per-node=3
# expect: state=hang kind=op_mismatch culprits=2 victims=0,1 certainty=proved
# expect: site=culprit

import time

import torch
import torch.distributed as dist


class Timed:
    def __enter__(self):
        self.began_s = time.perf_counter()
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            print(f"left out: {error}", flush=True)
            return True
        took_s = torch.tensor([time.perf_counter() - self.began_s])
        everyone = torch.empty(dist.get_world_size())
        dist.all_gather_into_tensor(everyone, took_s)  # victim
        return False


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = [torch.randn(8) for _ in range(30)]
    if rank == 2:
        rows[19] = torch.randn(7)
    weights, loss = torch.randn(8), torch.zeros(1)
    for row in rows:
        with Timed():
            loss = (weights * row).sum()
        gradient = torch.ones(16) * loss
        dist.all_reduce(gradient)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `return True`
