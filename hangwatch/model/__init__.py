"""Values shared by every part of hangwatch.

Frozen dataclasses and enums; imports nothing of hangwatch, so that it loads in
a training process, in the watchdog and offline alike, with or without the
native module.

Conventions: ranks are global ranks. ``*_ns`` is CLOCK_MONOTONIC of one node and
never leaves that node; ``*_age_s`` is seconds before the snapshot was taken and
may be compared across nodes. A *place* is (group, sequence number): the n-th
collective of a group, counted from 1, point-to-point calls not counted. This is
the ``collective_seq_id`` of PyTorch's Flight Recorder.
"""
