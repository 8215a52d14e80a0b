"""The heads of a model are synchronised in the order of a set of their names."""
# launched with --nproc-per-node=3
# expect: state=hang kind=order_inversion certainty=proved|likely|possible op=all_reduce
# expect: culprits=0|1|2|0,1|0,2|1,2|0,1,2 site=culprit forks=no

import torch
import torch.distributed as dist

NAMES = {"boxes", "classes", "depth", "edges", "faces", "masks", "normals", "points"}


def chosen(step):
    """The heads that are trained in a step."""
    if step < 20:
        return sorted(NAMES)
    return NAMES - {"points"}


class Heads:
    def __init__(self):
        self.groups = {name: dist.new_group() for name in sorted(NAMES)}

    def synchronise(self, names):
        for name in names:
            gradient = torch.ones(8)
            dist.all_reduce(gradient, group=self.groups[name])  # culprit


def main():
    dist.init_process_group("gloo")
    heads = Heads()
    for step in range(40):
        heads.synchronise(chosen(step))


if __name__ == "__main__":
    main()

# cause: different_order at `for name in names:`
