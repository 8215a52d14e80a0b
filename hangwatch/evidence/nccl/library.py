"""Which NCCL a rank has loaded, and what it has opened to reach the others.

From /proc alone (proc(5)): what is mapped and open, not what NCCL chose to use. Only its
own log (NCCL_DEBUG=INFO) tells that, and it is the user's.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hangwatch.evidence.sockets import open_files

MAX_SHOWN = 16
_NCCL = re.compile(r"(/\S.*/)nvidia/nccl/lib/libnccl\.so")
_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d[\w.+]{0,30})\.dist-info")
_PLUGIN = re.compile(r"/(libnccl-(?:net|tuner|profiler)[\w.-]{0,60}|librccl-net[\w.-]{0,60})$")
_SEGMENT = re.compile(r"/dev/shm/nccl-\w+")  # noqa: S108 (where NCCL maps its buffers from)
_VERBS = re.compile(r"/dev/infiniband/(uverbs\d{1,4})")
_SYS = "/sys"


def version(pid: int, proc: str = "/proc") -> str:
    """The version of the NCCL wheel that a process has loaded, empty if it is not known."""
    found = next((m for path in _mapped(pid, proc) if (m := _NCCL.match(path))), None)
    if found is None:
        return ""
    try:
        names = os.listdir(found[1])  # noqa: PTH208 (names only)
    except OSError:
        return ""
    return next((m[1] for name in names if (m := _WHEEL.fullmatch(name))), "")


def transport(pid: int, proc: str = "/proc", sys: str = _SYS) -> str:
    """What a process has loaded and opened for NCCL to use, for people; empty for nothing."""
    mapped = _mapped(pid, proc)
    plugins = sorted({m[1] for path in mapped if (m := _PLUGIN.search(path))})
    verbs = {m[1] for path in open_files(pid, proc) if (m := _VERBS.fullmatch(path))}
    adapters = sorted({_adapter(one, sys) for one in verbs})
    found = [*plugins[:MAX_SHOWN]]
    if adapters:
        found.append(f"RDMA adapters {', '.join(adapters[:MAX_SHOWN])}")
    if any(_SEGMENT.match(path) for path in mapped):
        found.append("shared memory")
    return "; ".join(found)


def _mapped(pid: int, proc: str) -> list[str]:
    """The files that a process has mapped, each once."""
    try:
        text = Path(proc, str(pid), "maps").read_text("utf-8", "replace")
    except OSError:
        return []
    paths = (fields[5] for line in text.splitlines() if len(fields := line.split(None, 5)) > 5)  # noqa: PLR2004
    return list(dict.fromkeys(path.removesuffix(" (deleted)") for path in paths))


def _adapter(uverbs: str, sys: str) -> str:
    """The adapter behind /dev/infiniband/uverbsN, such as mlx5_0."""
    try:
        return Path(sys, "class/infiniband_verbs", uverbs, "ibdev").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return uverbs
