"""Tolerances of the diagnosis, in seconds: how exact the times in its evidence are.

They follow from how the evidence is taken, so that they are the same for all jobs. What depends
on the job, or on the user's patience, is in ``Thresholds``.
"""

# --- How late something is seen ---

SAMPLED_S = 1.0
"""A call that C++ has issued is in the counters after so long: they are read twice a second."""
NOTICED_S = 1.0
"""The end of a rank is seen after so long at the latest. Its peers notice at once, by the
connection that closes, and their exceptions have the time at which they were raised."""
COUNTED_S = 2.0
"""A call that was issued so long before a rank ended is in its counters."""
PROOF_AFTER_S = 1.0
"""Nothing is proved by younger waits: pages are read one after the other."""
GIL_STALE_S = 3.0
"""A rank without a beat for so long does not get the GIL: its sampler beats twice a second."""

# --- What counts as the same moment ---

SAME_NODE_S = 0.1
"""Most time between ranks of a node that make a group, or end, together."""
OTHER_NODE_S = 2.0
"""The same for several nodes, which are not read at the same moment."""
TOGETHER_S = 1.0
"""Groups that were made further apart were not made together, however busy the machine is."""

# --- How long other things may take ---

MOMENT_S = 1.0
"""Least time that a rank waits in a set-up call or for a key, unless others are in the call for
longer: a thread may create groups repeatedly, while the program is elsewhere."""
RUN_AHEAD_S = 60.0
"""Most time from an error of a GPU to the wait of a rank: a program runs ahead of its device."""
MISSED_S = 30.0
"""A thread that ended so long before others waited may have been missed only then."""
LAUNCHER_S = 6.0
"""Time for the launcher to end or restart the others after a rank failed: it looks once the process
is gone, torchrun every 0.1 s, an older one every 5 s."""
SHUTDOWN_S = 30.0
"""Time for a launcher to end all ranks: torchrun's grace period."""
