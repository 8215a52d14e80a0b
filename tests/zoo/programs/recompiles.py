"""Rank 1 meets a shape that is not compiled yet; --stuck: its compiler waits for a server."""
# watched with --suspect-after 3 --hang-after 10
# expect: state=slow kind=never_entered reason=compiling culprits=1 victims=0,2,3
# expect: op=all_reduce group=default_pg site=pass victim_site=average exit=0
# expect --stuck: state=hang kind=never_entered reason=compiling culprits=1 victims=0,2,3
# expect --stuck: op=all_reduce group=default_pg site=server victim_site=average
# expect --stuck: certainty=likely

import socket
import sys
import time

import torch
import torch.distributed as dist

USUAL = 16


def search(graph, inputs):
    """Look for the best of all layouts, as a backend that tunes does."""
    if any(one.shape[0] == USUAL for one in inputs):
        return graph.forward
    if "--stuck" in sys.argv:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            with socket.create_connection(silent.getsockname()) as server:
                server.recv(1)  # server
    end = time.monotonic() + 14
    while time.monotonic() < end:
        time.sleep(sum(range(200_000)) / 1e12)  # pass
    return graph.forward


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    compiled = torch.compile(model, backend=search, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 41):
        size = 12 if step == 30 and rank == 1 else USUAL
        loss = compiled(torch.randn(size, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)  # average
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(sum(...` | stuck_line at `while time.monotonic() < end:`
# cause --stuck: stuck_line at `server.recv(1)`
