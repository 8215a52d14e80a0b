"""Two networks in turns: one rank leaves the critic's step out while its loss is small."""
# expect: state=failed|hang kind=signature_mismatch culprits=1 op=all_reduce group=default_pg
# expect: certainty=proved|likely lost=died

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def critic_step(critic, generator, optimizer, real):
    fake = generator(torch.randn(len(real), 4)).detach()
    loss = critic(fake).mean() - critic(real).mean()
    if real.mean() > 2:
        return
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def generator_step(critic, generator, optimizer, size):
    loss = -critic(generator(torch.randn(size, 4))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    critic = DistributedDataParallel(torch.nn.Linear(8, 1))
    generator = DistributedDataParallel(torch.nn.Linear(4, 8))
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.05)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.05)
    for step in range(60):
        real = torch.randn(16, 8) + (4.0 if rank == 1 and step == 25 else 0.0)
        critic_step(critic, generator, of_critic, real)
        generator_step(critic, generator, of_generator, 16)
        time.sleep(0.04)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
