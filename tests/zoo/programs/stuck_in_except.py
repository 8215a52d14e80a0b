"""One rank catches an error and wants to report it to a server that does not answer."""
# expect: state=hang kind=never_entered reason=exception_handling culprits=0 victims=1,2,3
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible

import socket

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def report(error, server):
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(repr(error).encode())
        connection.recv(1)  # culprit


def load(step, rank):
    if rank == 0 and step == 12:
        raise ValueError("corrupt sample")
    return torch.randn(8, 16)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    server = socket.create_server(("127.0.0.1", 0))  # it never accepts
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.zeros(8, 16)
    for step in range(40):
        try:
            batch = load(step, rank)
        except ValueError as error:
            report(error, server)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `connection.recv(1)`
