"""A rank raises, the launcher starts all of them anew, and then another one hangs them."""
# launched with --max-restarts=1
# expect: state=hang kind=subset_entered certainty=proved culprits=2 victims=0,1,3
# expect: op=barrier group=default_pg site=culprit also=failed:1

import os

import torch
import torch.distributed as dist


def main():
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    # Each start has keys of its own: gloo would find the addresses of the ranks before.
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    prefixed = dist.PrefixStore(f"start-{restart}", store)
    dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=world_size)
    for step in range(40):
        gradient = torch.randn(64)
        if restart == "0" and rank == 1 and step == 15:
            raise OSError("the file server was away for a moment")
        if restart != "0" and rank == 2 and step == 20:
            dist.barrier()  # culprit
        dist.all_reduce(gradient)  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if restart != "0" and rank == 2 and step == 20:`
