"""Whether hangwatch speaks before the timeouts of torch end the job.

Defaults as in torch 2.13: NCCL groups 10 minutes, others 30 (distributed/constants.py),
the heartbeat monitor of NCCL 8 minutes, which ends the process (ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping

from hangwatch.preflight.finding import Finding, ok, warn

CHECK = "timeouts"
NCCL_S = 600.0
HEARTBEAT_S = 480.0
SUSPECT_S = 120.0
"""The most that --suspect-after auto waits."""
_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"


def timeouts(environ: Mapping[str, str], suspect_after_s: float | None) -> list[Finding]:
    """Compare when a wait is announced with when it is ended."""
    speaks_s = SUSPECT_S if suspect_after_s is None else suspect_after_s
    found = []
    if speaks_s >= NCCL_S:
        found.append(
            warn(
                CHECK,
                f"--suspect-after {speaks_s:g}: NCCL ends a job after {NCCL_S:g} s, unless"
                " init_process_group() has a longer timeout",
                "leave --suspect-after at auto, or give init_process_group() a longer timeout",
            )
        )
    heartbeat_s = _seconds(environ, _HEARTBEAT, HEARTBEAT_S)
    if environ.get("TORCH_NCCL_ENABLE_MONITORING", "1") != "0" and heartbeat_s <= speaks_s:
        found.append(
            warn(
                CHECK,
                f"{_HEARTBEAT}={heartbeat_s:g} ends a stuck rank before a wait is announced"
                f" ({speaks_s:g} s)",
                f"set {_HEARTBEAT} to {HEARTBEAT_S:g} or more, or a lower --suspect-after",
            )
        )
    if environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0":
        found.append(
            warn(
                CHECK,
                "TORCH_NCCL_ASYNC_ERROR_HANDLING=0: a collective that fails never ends the job",
                "unset it; hangwatch reports either way, and --on-hang abort ends the ranks",
            )
        )
    said = f"a wait is announced within {speaks_s:g} s"
    return found or [ok(CHECK, f"{said}; NCCL would end the job after {NCCL_S:g} s by default")]


def _seconds(environ: Mapping[str, str], name: str, otherwise: float) -> float:
    try:
        return float(environ.get(name, ""))
    except ValueError:
        return otherwise
