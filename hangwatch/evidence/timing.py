"""The times of gathering evidence, in seconds: how old it may be, and how long each source has."""

from __future__ import annotations

# --- Pages (pages/) ---

QUIET_S = 1.0
"""A shorter wait is ignored: healthy ranks wait for each other all the time."""
RING_LEAST_S, RING_MOST_S = 0.4, 5.0
"""Between two readings of the events of a rank that stays where it is."""
PAGE_UNFINISHED_S = 2.0
"""A file younger than this may still be in the making."""
ARRIVAL_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds of the buckets of arrivals, the metric's; one more has the rest."""

# --- Flight Recorders (flight/request.py) ---

FLIGHT_ANSWER_S = 2.0
"""The answer of a sampler, which looks for requests a few times a second."""
FLIGHT_POLL_S = 0.02
"""Between two looks for that answer."""
SAMPLER_SILENT_S = 3.0
"""A sampler without a beat for so long does not answer. Where the heart still beats, the rank
answers without the GIL (native/dump.hpp)."""
CLOCKS_SET_S = 30.0
"""Clocks of a recorder and a page that differ by more were set in the meantime."""
FLIGHT_FRESH_S = 10.0
"""A recorder that was read longer than this before a rank's end shows another moment."""

# --- Processes (stacks.py, processes.py, exits.py, sources.py) ---

PY_SPY_S = 5.0
"""One dump that does not stop the process."""
PY_SPY_NATIVE_S = 20.0
"""The same with native frames, for which the symbols of torch are read."""
PY_SPY_KILLED_S = 1.0
"""Time for a py-spy that was killed to end; one in an uninterruptible sleep is left behind."""
CPU_MOMENT_S = 0.05
"""Processor time is counted in hundredths of a second: a shorter time shows nothing."""
LAUNCHER_ENDS_S = 60.0
"""A rank that ends so soon after the launcher was asked to end was ended by it: torchrun gives its
ranks 30 s, and batch systems as long, before they send SIGKILL."""
IMPORTS_S = 0.4
"""The imports of the user's files are followed for so long."""

# --- NCCL's RAS service (ras.py) ---

RAS_LEG_S = 1
"""RAS waits so long for processes that do not answer it, in whole seconds; it adds up to 5 s."""
RAS_MARGIN_S = 0.2
"""Before the deadline: what has come by then is worth keeping."""

# --- NVML (gpu/) ---

NVML_READ_S = 5.0
"""Between two readings of a GPU."""
NVML_SILENT_S = 15.0
"""NVML is silent after this: an answer takes milliseconds; seconds while a driver starts a GPU."""
NVML_EVENTS_S = 5.0
"""One wait for events, which returns at once when one comes."""
NVML_ANSWER_S = 10.0
"""The first answers of all GPUs, for ``hangwatch doctor``."""
NVML_POLL_S = 0.02
"""Between two looks for these."""
