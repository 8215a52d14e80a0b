"""Each rank has a process tokenize; that of one rank waits for the lock of a file in its cache."""
# launched with --nproc-per-node=3
# expect: state=hang kind=never_entered culprits=0 victims=1,2
# expect: site=culprit certainty=likely

import fcntl
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist

TOKENIZE = """
import fcntl, sys
cache = open(sys.argv[1], "r+")
fcntl.flock(cache, fcntl.LOCK_EX)
print(len(cache.read()))
"""


def tokenize(cache):
    command = [sys.executable, "-c", TOKENIZE, cache]
    return int(subprocess.check_output(command))  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with tempfile.NamedTemporaryFile("w+") as cache:
        for epoch in range(4):
            if (rank, epoch) == (0, 2):
                fcntl.flock(cache, fcntl.LOCK_EX)
            tokens = torch.tensor([tokenize(cache.name)])
            dist.all_reduce(tokens)  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `return int(subprocess.check_output(command))`
