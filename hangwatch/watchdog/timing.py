"""The times of the watchdog, in seconds: what it waits for, how often it looks, when it gives up.

What a user chooses (``--suspect-after``, ``--hang-after``, ``--interval``) is in settings/.
"""

from __future__ import annotations

# --- How long is normal (cadence.py) ---

SUSPECT_MIN_S, SUSPECT_MAX_S = 10.0, 120.0
"""Bounds of what the gaps of a job make of ``--suspect-after auto``: a person's patience."""
HANG_MIN_S, HANG_MAX_S = 300.0, 1800.0
"""The same of ``--hang-after auto``; 1800 s is the default timeout of gloo and MPI."""
GAP_WINDOW_S = 30.0
"""The longest gap of each such window is kept."""
SHORT_WAIT_S = 1.0
"""Waits shorter than this teach nothing: the looks are half a second apart."""
BETWEEN_DIAGNOSES_S = 0.4
"""Between two diagnoses of one wait, also while ranks still move."""
OVER_S = 1.0
"""A wait has passed once it has been over for so long."""
COMPARE_FIRST_S, COMPARE_MOST_S = 1.0, 60.0
"""Until the next closer look at ranks that differ; twice as long after each."""

# --- The loop, its state and its end (monitor.py, daemon.py) ---

POLL_S = 0.05
"""Between two looks at something that is about to end."""
STATE_SAVE_S = 10.0
"""Between two saves of the state for the next watchdog, which loses no more than this."""
ITERATION_END_S = 4.0
"""Time for an iteration to end once the command has ended."""
RANKS_GONE_S = 2.0
"""Time for ranks to end after their launcher."""
CONCLUDE_S = 9.0
"""The post-mortem in all; the supervisor waits a little longer than this."""
LOCK_RELEASE_S = 10.0
"""Time for others to release the lock of a run whose supervisor is gone."""
COMMANDS_POLL_S = 0.25
"""Between two looks at the commands of a shared run."""

# --- Evidence and judgement (incident/evidence.py, judge.py) ---

EVIDENCE_S = 5.0
"""Stacks and recorders together; the user waits for the verdict meanwhile."""
RAS_S = 3.0
"""NCCL's RAS service, which waits a second for processes that do not answer it."""
SOURCES_S = 1.0
"""Source files: they may lie on a file system that hangs."""
DIAGNOSIS_S = 120.0
"""One diagnosis; of 131,072 ranks it takes four."""
HEAD_START_S = 3.0
"""Later thresholds of a node while another one has the report of the incident."""
LAST_WORDS_S = 2.0
"""The other nodes' evidence about a failure, which was asked for when the rank failed."""
POST_MORTEM_STACKS_S = 3.0
"""Stacks of ranks that outlive their launcher."""

# --- Reports and hooks (incident/reporter.py) ---

REPORT_BUILD_S = 30.0
"""A report of a hundred thousand ranks takes some seconds to build."""
REPORT_WRITE_S = 8.0
"""A report directory that takes longer is on a file system that hangs."""
HOOK_S = 60.0
"""A user's hook, before it is killed."""
XID_AGE_MOST_S = 30 * 86400.0
"""The oldest error of a GPU that the timeline dates: ages come from other nodes, too."""

# --- Ending ranks (incident/abort.py) ---

PROVED_S = 30.0
"""No rank is ended for a wait younger than this, unless a hang takes less (``--hang-after``)."""
TOGETHER_S = 1.0
"""Ranks that come due so soon are waited for, to be ended together with the others."""
ALONE_S = 5.0
"""Delay of the culprit's end on a node on which no rank waits: the end of the ranks that wait on
other nodes may be enough, and there it is what ends the job."""
SAMPLE_AGE_S = 0.1
"""Values may be as old as this when a sampler writes them."""
SAMPLER_BEAT_S = 1.5
"""A sampler that has not written for so long cannot, and then its rank does not go on either."""
TERM_S = 2.0
"""Time for a process to end after a signal."""
CHECKPOINT_S = 30.0
"""The same if it handles SIGTERM itself: it may save a checkpoint. torchrun waits as long."""
STANDSTILL_S = 1.0
"""The most time that counts between two looks: if it was more, the machine stood still."""

# --- Joining the other nodes (peers/connection.py, exchange.py, store.py) ---

JOIN_AFTER_S = 5.0
"""Ranks of this node that come later than this are not named to the other nodes."""
HOLD_VERDICT_S = 6.0
"""A verdict waits no longer than this for the other nodes to be joined."""
REJOIN_S = 15.0
"""Between two attempts to join again after the store was lost, while ranks wait."""
JOIN_S = 60.0
"""A store that is busy with the start of a large job may not answer for a while."""
JOIN_RETRY_S = 5.0
"""Between two attempts within JOIN_S."""
ROSTER_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Pauses between looks at whether all nodes have joined."""
STORE_CONNECT_S = 20.0
"""A store asks the name service for each client, in its only thread."""
STORE_CALL_S = 10.0
"""A store that does not answer for so long is as good as gone."""

# --- Asking the other nodes (peers/exchange.py, rounds.py) ---

GATHER_S = 2.0
"""The answers of all nodes, of pages and /proc alone."""
GATHER_FULL_S = 8.0
"""The same with stacks, for which each node has EVIDENCE_S."""
OWNER_CONCLUDES_S = 4.0
"""The verdict of an incident's owner, once it has gathered."""
ANSWER_EVERY_S = 1.0
"""One more incident of others is answered each time: anyone may open some."""
FULL_ANSWER_EVERY_S = 10.0
"""The same with stacks, for which each rank is stopped for some milliseconds."""
COMPARING_S = 30.0
"""Comparing the moments of ten thousand ranks, in a thread."""
TELL_EVERY_S = 10.0
"""One more question for moments is answered each time."""
INCIDENT_WAIT_S = 600.0
"""The wait for the next incident is renewed this often."""
WAIT_SLICE_S = 0.2
"""Between the parts of a wait for others the connection is free for our own answers."""
UNPACKING_S = 60.0
"""Unpacking the answers of 64 nodes, in a thread."""
REACH_S = 2.0
"""A machine that lives refuses a connection within this."""
REACH_ALL_S = 5.0
"""All machines that are asked for a sign of life, together."""

# --- Starts (startup.py) ---

CHECK_IN_S = 60.0
"""Ranks that run for so long without a page will have none any more."""
ABSENCE_LOOK_S = 2.0
"""Between two looks at the processes below the command while there is no page."""
INIT_SOON_S = 8.0
"""Healthy ranks of one node leave init_process_group sooner."""
INIT_LATE_S = 40.0
"""Names and routes of a pod may come this late, and other nodes later."""
START_CHECK_S = 120.0
"""A check of the start: a name server may be dead."""
START_CHECK_END_S = 3.0
"""Time that the end of the watch waits for such a check."""

# --- GPUs (gpus.py) ---

GPU_REPORT_S = 1.0
"""Between two looks at the state of the GPUs."""
GPU_CROWDED_S = 10.0
"""Ranks that are on one GPU for so long stay there: two readings."""
GPU_UNMATCHED_S = 30.0
"""A rank that has had a device for so long has used it."""
GPU_DEVICES_S = 5.0
"""Between two looks at the devices that a process has opened."""

# --- Stragglers (stragglers.py) ---

PROFILE_S = 5
"""What a straggler and another rank do is sampled for so long, in whole seconds."""
HELD_S = 1.0
"""A straggler that all have waited for for so long is sampled if nothing else shows why."""
HELD_PROFILE_S = 1
MOMENTS_KNOWN_S = 2.0
"""After so long the moments of a time are known of all ranks."""
WAITS_SHOWN_S = 60.0
"""A report shows who has waited for so long."""
PROFILE_ENDS_S = 3.0
"""For a profile whose processes have ended, and the report that is made of it."""
IN_USE_S = 60.0
"""A group in which nothing was issued for so long need not be compared."""
ASLEEP_S = 10.0
"""A thread that uses no CPU for so long does not train."""

PROFILE_LATE_S = 3.0
"""That of another node may come so much later."""
WHY_S = 8.0
"""The node that has the stragglers says why they are slow so long after the profile, at most."""
SPREAD_S = 1.0
"""Most of the nodes that want to ask the others do so within this; the first one asks."""

# --- Metrics (telemetry.py) ---

METRICS_BIND_S = 60.0
"""Time to find and bind the address: a name server may be dead."""
TORCH_VERSION_EVERY_S = 60.0
"""Between two attempts to read the version of torch."""
TORCH_VERSION_S = 5.0
"""One attempt: torch may lie on a file system that hangs."""
RINGS_EVERY_S = 5.0
"""Between two readings of all rings, or more where they take long (RINGS_SHARE)."""
LAG_S = 1.0
"""Lag is measured against the places of others so long ago."""
