"""Rank 0 hands out work in turns; a worker that fails at its task asks for the next one."""
# expect: state=hang kind=missing_peer culprits=2 certainty=likely
# expect: op=recv group=default_pg site=culprit victim_site=victim

import torch
import torch.distributed as dist

TASKS = 12


def hand_out(workers):
    best = float("inf")
    for task in range(0, TASKS, len(workers)):
        for worker in workers:
            dist.send(torch.tensor([float(task + worker)]), dst=worker)
        for worker in workers:
            answer = torch.empty(1)
            dist.recv(answer, src=worker)  # victim
            best = min(best, float(answer))
    for worker in workers:
        dist.send(torch.tensor([-1.0]), dst=worker)


def work():
    task = torch.empty(1)
    while True:
        dist.recv(task, src=0)  # culprit
        if task < 0:
            return
        try:
            answer = solve(float(task))
        except FloatingPointError:
            continue
        dist.send(torch.tensor([answer]), dst=0)


def solve(task):
    if task == 8:
        raise FloatingPointError("diverged")
    return task**0.5


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        hand_out(range(1, dist.get_world_size()))
    else:
        work()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `except FloatingPointError:` | skipped_iteration at `continue`
