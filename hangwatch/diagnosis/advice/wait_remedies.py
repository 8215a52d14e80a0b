"""The table of advice for what a culprit waits for outside of all collectives."""

from __future__ import annotations

from hangwatch.diagnosis.advice.remedy import Remedy

_TOPIC = "slow rank"

BY_WAIT: tuple[Remedy, ...] = (
    Remedy(
        _TOPIC,
        "Take the two locks in one order in all threads: {holder} waits at {holder_at} for the one "
        "that was taken at {crossed_at}, and keeps {mutex} meanwhile.",
    ),
    Remedy(
        _TOPIC,
        "Do not let {holder} wait for anything while it has {mutex}: move what it does at "
        "{holder_at} out of the lock, or give it a timeout.",
    ),
    Remedy(
        _TOPIC,
        "See which thread has {mutex}: the stacks of all threads are in the report. One that "
        "raised or returned between acquire() and release() keeps it for good; `with` does not.",
    ),
    Remedy(
        _TOPIC,
        "Fix the {dead_by} at {dead_at} that ended {dead_thread} on {stuck}. And have the "
        "thread hand its exceptions on (put them into the queue, or use a future), so that the "
        "rank ends with them instead of waiting.",
    ),
    Remedy(
        _TOPIC,
        "See why {lost_thread} has ended on {stuck}, or was not started: an exception in a "
        "thread is only printed. Have it hand its exception on (put it into the queue, or use a "
        "future), so that the rank ends with it instead of waiting.",
    ),
    Remedy(
        _TOPIC,
        "See why {lost_process} of {stuck} is gone, by its output or the kernel log "
        "(out of memory), and check in the loop that waits for it that it lives, or wait with a "
        "timeout.",
    ),
    Remedy(
        _TOPIC,
        "See what keeps {child} on {stuck}, and give the call at {line} a timeout=, so that "
        "it raises instead of waiting for ever.",
    ),
    Remedy(
        _TOPIC,
        "Give the request at {line} a timeout ({answer} may never come), and let no other rank "
        "wait for it: log and upload in a thread, and go on where it fails.",
    ),
    Remedy(
        _TOPIC,
        "See which process has {file_lock} (`lslocks`, or `fuser -v` with the file), and whether "
        "it still needs it. Take it with a timeout, and not while other ranks wait.",
    ),
    Remedy(
        _TOPIC,
        "See who should be at the other end of the pipe at {line}, which waits for {pipe}. A pipe "
        "holds 64 KiB: who writes more waits until it is read, and who reads until all close it.",
    ),
    Remedy(
        _TOPIC,
        "Check the mount behind the file at {line} on that node ({mount}; dmesg, `df`): it does "
        "not answer.",
    ),
    Remedy(
        _TOPIC,
        "See why the loop `{until}` does not end on {stuck}: what it asks for does not come "
        "about there. Give it a limit after which it raises.",
    ),
    Remedy(
        _TOPIC,
        "Give the key one name on both sides: {stuck} waits for {key} at {line}, and what is set "
        "at {set_at} is `{set_key}`.",
    ),
    Remedy(
        _TOPIC,
        "See which rank should set {key} before {stuck} comes to {line}, and which way led it past "
        "that. Give the call a timeout=, so that it raises with the key's name.",
    ),
    Remedy(
        _TOPIC,
        "Do not ask for input ({input} at {line}) in a job of several ranks: take an argument or "
        "an environment variable.",
    ),
    Remedy(
        _TOPIC,
        "See what keeps {other_thread} of {stuck}, which is at {other_thread_at}: the rank "
        "waits in {waits_in}, and it has no other thread of the program that could end that.",
    ),
    Remedy(
        _TOPIC,
        "See what {stuck} should get from another thread or process in {waits_in}, and whether "
        "that still runs: the stacks of all threads are in the report. Of an exception in a thread "
        "only standard error tells.",
    ),
)
