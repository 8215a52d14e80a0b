"""One rank is stopped by SIGSTOP, as by a shell's job control or a frozen container."""
# expect: state=hang kind=never_entered reason=stopped culprits=0 victims=1,2,3
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible

import os
import signal

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.zeros(64)
    for step in range(40):
        gradient = torch.randn(64)
        if rank == 0 and step == 15:
            os.kill(os.getpid(), signal.SIGSTOP)  # culprit
        dist.all_reduce(gradient)  # victim
        weights -= 0.01 * gradient / dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `os.kill(os.getpid(), signal.SIGSTOP)`
