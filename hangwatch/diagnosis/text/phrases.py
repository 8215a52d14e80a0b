"""Phrases on groups, wait points, lines of code, and the activity of ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hangwatch.diagnosis.facts.activity import Activity, Compiler, Compiling
from hangwatch.diagnosis.facts.awaited import On
from hangwatch.diagnosis.facts.blocked import Blocked
from hangwatch.diagnosis.facts.endings import Ending
from hangwatch.diagnosis.facts.job import Job
from hangwatch.diagnosis.facts.wait_points import ANYONE, UNNAMED, Channel, Slot, WaitPoint
from hangwatch.model.calls import PackageCall, Site
from hangwatch.model.kinds import Reason
from hangwatch.model.page import ExceptionRecord
from hangwatch.text import code_line, signal_name, the_ranks, verb

Ranks = tuple[int, ...]

MAX_MESSAGE = 160
_AT_SOURCE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|hpp?):\d+\] ")
"""Where a check of a C++ library stands, ahead of what it says."""
MAX_SHOWN = 3
"""Most sentences on things that differ from rank to rank."""


def at_line(site: Site | None) -> str:
    """`` at train.py:41``, with the call of a package that is there; empty for no site."""
    if site is None:
        return ""
    if site.call is not None:
        return f" in {_called(site.call)}, called at {code_line(site)}"
    return f" at {code_line(site)}"


def within(site: Site | None) -> str:
    """`` in DDPStrategy.reduce``, the innermost method of a package's call; empty for none."""
    return f" in {site.call.inner}" if site and site.call and site.call.inner else ""


def _called(call: PackageCall) -> str:
    """``Accelerator.gather of accelerate``."""
    return f"{call.function} of {call.package}"


def place_in_code(site: Site | None) -> str:
    """``train.py:41 in train: `loss.backward()```."""
    if site is None:
        return "an unknown line"
    where = code_line(site)
    if site.function and site.function != "<module>":
        where += f" in {site.function}"
    where = f"{where}: `{site.source}`" if site.source else where
    if site.call:
        where += f", in {_called(site.call)}"
        where += f", there in {site.call.inner}" if site.call.inner else ""
    return where


def group_text(job: Job, gid: int) -> str:
    """``group default_pg``; by its ranks where it has no description."""
    key = job.keys[gid]
    if key.desc and key.desc != "undefined":
        return f"group {key.desc}"
    return f"the group of {the_ranks(job.members(gid))}"


ONE_NAME = (
    "PyTorch numbers the names of groups in the order of creation, so these ranks joined different "
    "groups under one name."
)


def wait_point_text(job: Job, wait_point: WaitPoint, op: str) -> str:
    """``all_reduce #41 of group default_pg``."""
    if isinstance(wait_point, Slot):
        number = f" #{wait_point.seq}" if wait_point.seq > 0 else ""
        return f"{op or UNNAMED}{number} of {group_text(job, wait_point.gid)}"
    if isinstance(wait_point, Channel):
        towards = "to" if wait_point.sends else "from"
        call = op or ("send" if wait_point.sends else "recv")
        peer = f"rank {wait_point.peer}" if wait_point.peer != ANYONE else "any rank"
        return f"{call} {towards} {peer} in {group_text(job, wait_point.gid)}"
    return key_text(wait_point.keys) if wait_point.keys else wait_point.call


def key_text(keys: Sequence[str]) -> str:
    """``the key `vocab/9` of the store``."""
    if len(keys) == 1:
        return f"the key `{keys[0]}` of the store"
    return f"the keys {', '.join(f'`{key}`' for key in keys)} of the store"


def now(ranks: Sequence[int], activity: Activity, who: str = "") -> str:
    """``it is loading data (data.py:12)``, or ``rank 2 is``."""
    who = who or verb(ranks, "it", "they")
    if activity.interrupted:
        inside = f" while in {_in_function(activity.site)}" if activity.site else ""
        return f"{who} {verb(ranks, 'was', 'were')} terminated externally{inside}"
    return f"{who} {verb(ranks, 'is', 'are')} {doing(activity)}"


def each_now(parts: Sequence[tuple[Ranks, Activity]]) -> str:
    """``it is loading data (data.py:12)``; of ranks that do different things, each in turn."""
    if len(parts) == 1:
        return now(*parts[0])
    return ", ".join(now(ranks, one, the_ranks(ranks)) for ranks, one in parts[:MAX_SHOWN])


_DOING = {
    Reason.DATA_LOADING: "loading data",
    Reason.CHECKPOINT_IO: "writing a checkpoint",
    Reason.STORE_WAIT: "waiting for a key of the store",
    Reason.GIL_HELD: "in native code that holds the GIL",
    Reason.STOPPED: "stopped (SIGSTOP, or a frozen container)",
    Reason.DEBUGGER: "in a debugger",
    Reason.EXCEPTION_HANDLING: "handling an exception",
    Reason.GPU_KERNEL: "stuck on the GPU, which does not execute the queued work",
}


def doing(activity: Activity) -> str:
    """The activity of a living culprit, to follow ``it is`` or ``they are``."""
    where = _in_function(activity.site)
    if activity.reason is Reason.USER_CODE:
        where = where or "its own code"
        blocked = activity.blocked
        if blocked is not None and blocked.on is not On.LOOP:
            asleep = blocked.on is On.SLEEP and blocked.until is None
            return f"sleeping in {where}" if asleep else f"{waiting(blocked)} ({where})"
        return f"busy in {where}" if activity.running else f"in {where}"
    if activity.reason is Reason.GPU_FAULT:
        return f"on {activity.fault}"
    what = _DOING.get(activity.reason, "in an unknown state (no stack)")
    if activity.compiling is not None:
        what = _compiling(activity.compiling)
    elif activity.blocked is not None:
        what = waiting(activity.blocked)
    elif activity.handling and activity.reason is Reason.EXCEPTION_HANDLING:
        what = f"handling {_article(activity.handling)}"
    if activity.worker:
        inside = f" in {_in_function(activity.worker_site)}" if activity.worker_site else ""
        return f"{what} (worker pid {activity.worker}{inside})"
    return f"{what} ({where})" if where else what


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def waiting(blocked: Blocked) -> str:
    """``waiting for the lock `lock```, to follow ``it is``."""
    if blocked.on is On.RETRY:
        return f"retrying after {_article(blocked.what)}"
    if blocked.on is On.SLEEP:
        return "sleeping in a loop"
    return f"waiting in {blocked.call}" if blocked.call else f"waiting for {blocked.what}"


def _compiling(compiling: Compiling) -> str:
    """``compiling with torch.compile``, ``building the C++ extension attention``."""
    if compiling.by is not Compiler.EXTENSION:
        waits = ", waiting for the lock of another compilation" if compiling.locked else ""
        return f"compiling with {compiling.by.value}{waits}"
    name = compiling.extension
    extension = f"the C++ extension {name}" if name else "a C++ extension"
    if compiling.locked:
        if compiling.held:
            return f"waiting for the lock of {extension}, which another process holds"
        return f"waiting for the lock file of {extension}, created by a build in another process"
    return f"building {extension}"


def _in_function(site: Site | None) -> str:
    """``slow_read, data.py:12``."""
    if site is None:
        return ""
    function = f"{site.function}, " if site.function and site.function != "<module>" else ""
    inside = f", in {_called(site.call)}" if site.call else ""
    return f"{function}{code_line(site)}{inside}"


def ended(end: Ending, ranks: Ranks = (0,)) -> str:
    """The end of ranks, to follow their name: ``raised ValueError: bad batch``."""
    was = verb(ranks, "was", "were")
    how = "ended with an unknown exit status"
    if end.exception is not None:
        how = _raised(end.exception)
    elif end.abort is not None:
        how = f"{was} aborted by {_exception_of_cpp(end.abort)}"
    elif end.reason is Reason.OUT_OF_MEMORY:
        how = f"{was} killed: the machine ran out of memory"
    elif end.signal is not None:
        how = f"{was} killed by {signal_name(end.signal)}"
    elif end.exit_code:
        how = f"exited with code {end.exit_code}"
    elif end.reason is Reason.EXITED:
        how = "exited" + (" with code 0" if end.exit_code == 0 else "")
    return how


def _raised(exception: ExceptionRecord) -> str:
    name = exception.type.rpartition(".")[2] or "an exception"
    at = f" ({code_line(exception.site)})" if exception.site else ""
    return f"raised {name}{_message(exception)}{at}"


def _exception_of_cpp(abort: ExceptionRecord) -> str:
    if not abort.type:
        return "std::terminate"
    said = replace(abort, message=_AT_SOURCE.sub("", abort.message))
    return f"an uncaught {abort.type}{_message(said)}"


def _message(exception: ExceptionRecord) -> str:
    message = " ".join(exception.story.split())
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 3] + "..."
    return f": {message}" if message else ""
