"""The times of the subcommands, in seconds.

Constants alone: a rank of a trial imports this in the job's own interpreter.
"""

from __future__ import annotations

# --- hangwatch top ---

TOP_LIVE_S = 1.0
"""Between two pictures on a terminal: what a person can follow."""
TOP_LINE_S = 5.0
"""Between two lines in a log."""
TOP_ONCE_S = 1.0
"""Between the first look and one that can be printed: a rate takes two looks."""
TOP_LEAST_S, TOP_MOST_S = 0.1, 3600.0
"""Bounds of ``--interval``."""
TOP_RATE_S = 5.0
"""A rate is that of the last few seconds."""

# --- hangwatch inspect ---

INSPECT_SOURCES_S = 2.0
"""Source files: they may lie on a file system that hangs."""

# --- hangwatch analyze ---

ANALYZE_SUSPECT_S = 1.0
ANALYZE_HANG_S = 3.0
"""Shorter than live: the user has seen it stuck. A call made just before a dump still runs."""
DUMP_COPIED_S = 86400.0
"""A file written so long after its last call was copied since, and shows no time."""

# --- hangwatch demo ---

DEMO_SUSPECT_S, DEMO_HANG_S = 3.0, 8.0
"""Short, so that a person sees both verdicts; a step of the demo takes a fiftieth of a second."""

# --- hangwatch doctor: this machine ---

DOCTOR_PY_SPY_S = 20.0
"""A stack of a process that was started for it, on a machine that may be busy."""
DOCTOR_RESOLVE_S = 10.0
"""A name: a name server may be dead."""

# --- hangwatch doctor: a trial ---

TRIAL_PATIENCE_S = 120.0
"""Until all ranks have to be there, and the first of this node: on several nodes a person
starts the line on each."""
TRIAL_PATIENCE_MOST_S = 3600.0
"""The most that ``--timeout`` takes."""
TRIAL_START_S = 60.0
"""A launcher's start and two imports of torch may take this long on several nodes, however short
the patience. On one node there is no other to wait for, and TRIAL_PATIENCE_S is the least."""
TRIAL_INIT_LEAST_S = 15.0
"""The least timeout of a trial's process group, half the patience on a large job."""
TRIAL_HANG_LEAST_S = 5.0
"""The least ``--hang-after`` of a trial, which is to end before torch's own timeout."""
TRIAL_STEP_S = 20.0
"""Each request to the store, once all ranks are there."""
TRIAL_CONNECT_S = 5.0
"""One connection between two nodes."""
TRIAL_POLL_S = 0.1
"""Between two looks at whether ranks have come, or the trial has ended."""
TRIAL_GRACE_S = 10.0
"""Time for the launcher to end after a signal."""
TRIAL_OVERTIME_S = 5.0
"""A rank that still runs so long after its time is over ends itself."""
REDUCE_MOST_S = 1.0
"""A larger size is tried if the one before took less for each call."""
