"""The times by which the start of a job is judged, in seconds.

Those of torch and NCCL are the defaults of torch 2.13.
"""

from __future__ import annotations

NCCL_S = 600.0
"""Time-out of NCCL's groups (torch/distributed/constants.py); that of others is 1,800 s."""
HEARTBEAT_S = 480.0
"""Until NCCL's heartbeat monitor ends a process that is stuck (ProcessGroupNCCL.cpp)."""
SUSPECT_S = 120.0
"""The longest wait of --suspect-after auto."""
CONNECT_S = 3.0
"""For a connection to another node, for which people wait; a lost SYN is sent again after 1 s."""
