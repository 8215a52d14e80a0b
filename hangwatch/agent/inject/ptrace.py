"""Lets the watchdog's py-spy read this process where Yama restricts that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hangwatch.agent.environment import ANY_SUPERVISOR, SUPERVISOR_PID
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Mapping

_PR_SET_PTRACER = 0x59616D61  # "Yama", prctl(2)
_RELATIONS_ONLY = "1"


def allow_supervisor(
    environ: Mapping[str, str] = os.environ, scope: str = "/proc/sys/kernel/yama/ptrace_scope"
) -> bool:
    """Name the supervisor, and so all its descendants, as allowed tracers.

    A watchdog that several supervisors share may outlive the one that started it,
    and descends from none of them then: any process of this user is named for it.

    Only where it is needed (Documentation/admin-guide/LSM/Yama.rst: in mode 1 a
    process may be traced by its ancestors and by whom it names, with descendants).
    """
    supervisor = environ.get(SUPERVISOR_PID, "")
    if not supervisor.isdecimal() and supervisor != ANY_SUPERVISOR:
        return False
    try:
        with open(scope, encoding="ascii") as file:
            if file.read().strip() != _RELATIONS_ONLY:
                return False
    except OSError as error:
        if is_foreign(error):
            raise
        return False
    import ctypes  # torch has imported it already

    tracer = ctypes.c_ulong(-1 if supervisor == ANY_SUPERVISOR else int(supervisor))
    return bool(ctypes.CDLL(None).prctl(_PR_SET_PTRACER, tracer, 0, 0, 0) == 0)
