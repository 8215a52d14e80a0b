"""The first rank publishes in the store how large the vocabulary is, as long as it has grown.

All wait for that key in each epoch, the first rank itself among them.
"""
# expect: state=hang kind=missing_peer certainty=likely culprits=0 site=culprit
# expect --elsewhere: state=hang kind=missing_peer certainty=likely culprits=0 site=elsewhere

import sys

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store


class Vocabulary:
    def __init__(self, store):
        self.store = store
        self.words = set()

    def publish(self, epoch, text):
        before = len(self.words)
        self.words.update(text)
        if len(self.words) == before:
            return
        self.store.set(f"vocabulary/{epoch}", str(len(self.words)))  # publishes

    def size(self, epoch):
        return int(self.store.get(f"vocabulary/{epoch}"))  # culprit


def words_of(epoch):
    return ["the", "cat"] if epoch == 14 else [f"word{epoch}", "the", "cat"]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    vocabulary = Vocabulary(dist.PrefixStore("words", _get_default_store()))
    for epoch in range(30):
        if rank == 0:
            vocabulary.publish(epoch, words_of(epoch))
        if rank != 0 or "--elsewhere" not in sys.argv:
            size = vocabulary.size(epoch)
            hidden = torch.ones(8) * (size > 0)
        else:
            hidden = torch.ones(8)
        dist.all_reduce(hidden)  # elsewhere


if __name__ == "__main__":
    main()

# cause: early_exit at `return` (24)
# cause --elsewhere: early_exit at `return` (24)
