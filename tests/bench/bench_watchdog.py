"""CPU and memory of the watchdog and the supervisor beside a healthy job of 8 ranks.

The ranks do an all_reduce 20 times a second and sleep between, so that what is
measured is not starved by the job.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """\
import sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(64)
dist.barrier()
if dist.get_rank() == 0:
    print("ready", flush=True)
end = time.monotonic() + float(sys.argv[1])
more = torch.ones(1)
while more.item():
    dist.all_reduce(tensor)
    time.sleep(0.05)
    more[0] = time.monotonic() < end
    dist.broadcast(more, src=0)
dist.destroy_process_group()
"""
WARM_UP_S = 5.0


def children(pid: int) -> dict[int, str]:
    """Child processes with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_bytes().rpartition(b")")[2].split()[1]) == pid:
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(path.name)] = line
        except OSError:
            continue
    return found


def cpu_s(pid: int) -> float:
    """User and system time so far: fields 14 and 15 of /proc/PID/stat (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident and proportional set size."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = {
        m[1]: int(m[2]) / 1024 for m in re.finditer(r"^(Rss|Pss): +(\d+) kB", text, re.MULTILINE)
    }
    return found["Rss"], found["Pss"]


def main() -> None:
    """Print CPU and memory of both processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "train.py")
        program.write_text(PROGRAM)
        process = subprocess.Popen(  # noqa: S603 (our own program)
            [
                *(sys.executable, "-m", "hangwatch", "--report-dir", directory),
                str(Path(sys.executable).with_name("torchrun")),
                *("--standalone", f"--nproc-per-node={options.ranks}", str(program)),
                str(options.seconds + 2 * WARM_UP_S),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(WARM_UP_S)
        watchdog = next(p for p, line in children(process.pid).items() if "watchdog" in line)
        processes = {"watchdog": watchdog, "supervisor": process.pid}
        before = {name: (time.monotonic(), cpu_s(pid)) for name, pid in processes.items()}
        time.sleep(options.seconds)
        for name, pid in processes.items():
            at, used = before[name]
            share = (cpu_s(pid) - used) / (time.monotonic() - at)
            rss, pss = memory_mib(pid)
            print(
                f"{name}, {options.ranks} ranks, {options.seconds:g} s: {share:.2%} of a core, "
                f"RSS {rss:.0f} MiB (PSS {pss:.0f})"
            )
        sys.exit(process.wait())


if __name__ == "__main__":
    main()
