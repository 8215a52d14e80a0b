"""The second stage counts its messages for the tag, and one of a dry run as well."""
# expect: state=hang kind=missing_peer certainty=likely culprits=1 victims=0 op=recv
# expect: site=culprit victim_site=victim
# launched with --nproc-per-node=2

import torch
import torch.distributed as dist

SHAPE = (4, 8)


class Link:
    def __init__(self, peer):
        self.peer = peer
        self.messages = 0

    def tag(self):
        self.messages += 1
        return self.messages

    def send(self, tensor):
        dist.send(tensor, self.peer, tag=self.tag())  # victim

    def receive(self):
        tensor = torch.empty(SHAPE)
        dist.recv(tensor, self.peer, tag=self.tag())  # culprit
        return tensor


def dry_run(link):
    print("the next message has tag", link.tag())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    link = Link(peer=1 - rank)
    for batch in range(60):
        if rank == 0:
            link.send(torch.randn(SHAPE))
        else:
            link.receive().square_()
        if rank == 1 and batch == 19:
            dry_run(link)
    dist.barrier()


if __name__ == "__main__":
    main()

# cause: different_argument at `dist.recv(tensor, self.peer, tag=self.tag())`
