"""A fake srun: starts a command once for each node of the job, all of them here."""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    words = sys.argv[1:]
    while words[0].startswith("-"):
        words.pop(0)
    started = []
    for number in range(int(os.environ["SLURM_NNODES"])):
        own = {"SLURM_PROCID": str(number), "SLURM_NODEID": str(number), "SLURM_LOCALID": "0"}
        started.append(subprocess.Popen(words, env={**os.environ, **own}))  # noqa: S603 (ours)
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main())
