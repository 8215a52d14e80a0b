"""A build that was killed has left the lock file of an extension, which rank 2 loads."""
# expect: state=hang kind=never_entered reason=compiling culprits=2 victims=0,1,3
# expect: op=all_reduce group=default_pg site=load victim_site=add certainty=likely
# expect: function=kernel text=lock advice=TORCH_EXTENSIONS_DIR

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

SOURCE = "int one() { return 1; }"


def kernel(folder):
    return cpp_extension.load_inline(  # load
        "ones", SOURCE, functions="one", build_directory=folder
    )


def main():
    dist.init_process_group("gloo")
    folder = tempfile.mkdtemp()
    Path(folder, "lock").touch()
    for step in range(20):
        total = torch.ones(4)
        dist.all_reduce(total)  # add
        if step == 10 and dist.get_rank() == 2:
            total *= kernel(folder).one()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `return cpp_extension.load_inline(`
