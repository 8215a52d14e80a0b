"""The times of supervisors, in seconds."""

from __future__ import annotations

LOOK_S = 5.0
"""Between two looks when no signal wakes the supervisor: only for an end that was missed."""
RANKS_LOOK_S = 0.2
"""Between two looks of a stand-alone supervisor at its ranks: it gets no signal when one ends."""
SHARED_LOOK_S = 0.05
"""Between two looks for the end of another supervisor's watchdog; people wait for the prompt."""
CONCLUDE_S = 15.0
"""For the watchdog to conclude: 9 s for the post-mortem (watchdog/daemon.py), and some to write."""

DEATHS_WITHIN_S = 60.0
"""Deaths of the watchdog this close to each other count together: not one bad moment."""
FIRST_BACKOFF_S = 0.25
"""Before the first restart of the watchdog; doubled for each death within DEATHS_WITHIN_S."""

STOP_FOLLOWS_S = 5.0
"""For COMMAND to tidy up (its terminal) before it stops as it was asked to."""
GRACE_S = 0.05
"""Until the observer gets the same signal as the supervisor, at most: a batch system signals one
process after the other."""
STALE_S = 1.0
"""Age of a report that cannot be about the signal at hand: far above GRACE_S."""
LATE_S = 5.0
"""For an observer that gets no processor, at most: on a node where each core has several ranks."""
REPORT_LOOK_S = 0.005
"""Between two looks at an observer that is about to report: a tenth of GRACE_S."""
SIGNAL_LOOK_S = 0.02
"""Between two looks without signalfd: too many open files, or a libc that lacks it."""
ORPHANED_LOOK_S = 1.0
"""Between two looks of the observer for its supervisor, which may have been killed."""
