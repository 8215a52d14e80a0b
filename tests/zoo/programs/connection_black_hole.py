"""A firewall forgets the connections of one rank: what is sent to it just disappears.

All ranks are in the same collective, and no rank's program is to blame.
"""
# expect: state=hang kind=collective_stuck culprits= op=all_reduce group=default_pg
# expect: certainty=likely|possible

import ctypes
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist

SO_ATTACH_FILTER = 26


def drop_everything_that_comes_in():
    """A socket filter that keeps nothing (socket(7)), on all connections of this process."""
    instruction = ctypes.create_string_buffer(b"\x06\x00\x00\x00\x00\x00\x00\x00")  # return 0
    program = (1).to_bytes(8, "little") + ctypes.addressof(instruction).to_bytes(8, "little")
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            connection = socket.socket(fileno=os.dup(int(descriptor.name)))
        except OSError:
            continue
        with connection:
            if connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradient = torch.randn(64)
    for step in range(60):
        if rank == 2 and step == 25:
            drop_everything_that_comes_in()
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: network
