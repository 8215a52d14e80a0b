"""A decorator repeats what fails, and on one rank that fails after a collective."""
# expect: state=hang kind=op_mismatch culprits=2 victims=0,1,3 certainty=proved
# expect: site=culprit

import functools
from pathlib import Path

import torch
import torch.distributed as dist


def repeated(times):
    def decorate(function):
        @functools.wraps(function)
        def attempts(*args, **kwargs):
            for _ in range(times - 1):
                try:
                    return function(*args, **kwargs)
                except OSError as error:
                    print(f"once more: {error}", flush=True)
            return function(*args, **kwargs)

        return attempts

    return decorate


class Log:
    def __init__(self, path):
        self.path = path

    @repeated(3)
    def add(self, loss):
        losses = torch.empty(dist.get_world_size())
        dist.all_gather_into_tensor(losses, loss)  # culprit
        with Path(self.path).open("a") as log:
            log.write(f"{losses.tolist()}\n")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = Log("/dev/null")
    weights = torch.zeros(64)
    for step in range(40):
        gradient = torch.randn(64)
        dist.all_reduce(gradient)
        weights -= gradient
        if rank == 2:  # a quota that is full for a moment
            log.path = "/dev/null/losses" if step == 17 else "/dev/null"
        log.add(weights.norm().reshape(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `except OSError as error:`
