"""The agent in one process: its page, its phase, the set-up call that it is in, its end."""

from __future__ import annotations

import json
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from hangwatch.agent.call_site import NO_SITE, known_prefixes, user_site
from hangwatch.agent.environment import looks_for_stragglers
from hangwatch.agent.guard import Guard, Ticket
from hangwatch.agent.habits import Practice
from hangwatch.agent.inject import rank as ranks
from hangwatch.agent.inject.post_import import keep_fault, record_failure, say_unwatched
from hangwatch.agent.inject.unwrapped import Unwrapped
from hangwatch.agent.periodic import Periodic
from hangwatch.agent.record.bypasses import Bypasses
from hangwatch.agent.record.custom_groups import CustomCalls
from hangwatch.agent.record.groups import Groups
from hangwatch.agent.record.marks import Marks
from hangwatch.agent.sample.exceptions import (
    Exceptions,
    at_end_of_child,
    error_of_child,
    fork_ends_well,
    has_other_threads,
)
from hangwatch.agent.sample.flight import FlightRecorder
from hangwatch.agent.sample.sampler import PERIOD_S, Sampler
from hangwatch.agent.torch_api import reports_completion, stream_function
from hangwatch.safety.foreign import Ignoring, is_foreign
from hangwatch.safety.texts import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import FrameType

    from hangwatch.agent.call_site import Prefixes
    from hangwatch.agent.record.recorder import Recorder
    from hangwatch.agent.torch_api import Recorders

HEARTBEAT_MS = 500
_NAMED_INIT = "init_process_group"
MAX_LEFT_OUT_BYTES = 4 << 20
MANY_GROUPS = 64
"""From this number on, only the group that is destroyed is sampled."""


class SetupCall(Ticket):
    """A call of a set-up function of torch's: kept by a local variable of its wrapper.

    What remembers it refers to it weakly, so that it is over at the latest when an
    exception has taken the wrapper's frame away, wherever in it that struck.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.destroying = False
        """True while torch's own function destroys groups."""
        self.leaving: str | None = None
        """The name of the group that it destroys, None for all of them."""


class SetupCalls:
    """The set-up calls that are being made, of which the page shows the outermost one."""

    def __init__(self, recorder: Recorder, prefixes: Prefixes) -> None:
        self._recorder = recorder
        self._prefixes = prefixes
        self._calls: dict[int, weakref.ref[SetupCall]] = {}
        """By id()."""
        self._shown: tuple[str, str, int, str] | None = None
        """The call that the page shows: name, file, line and function."""

    def current(self) -> list[SetupCall]:
        """Return the calls that are being made."""
        calls = [reference() for reference in list(self._calls.values())]
        return [call for call in calls if call is not None and not call.over]

    def begin(self, call: SetupCall) -> bool:
        """Take in a call that may block; return True if it is in no other one."""
        outermost = not self.current()
        self._calls[id(call)] = weakref.ref(call)
        return outermost

    def show(
        self, call: SetupCall, frame: FrameType | None, new: tuple[int, Sequence[int]] | None
    ) -> None:
        """Show the call, which is in no other one; new: see new_group()."""
        file, line, function = user_site(frame, self._prefixes)
        if new is not None:
            self._recorder.add_new_group(*new, file, line, function)
        self._shown = (call.name, file, line, function)
        self._recorder.set_in_call(*self._shown)

    def leave(self, call: SetupCall) -> None:
        """End the call, which has returned or raised."""
        call.over = True
        self._calls.pop(id(call), None)
        if not self.current():
            self._recorder.set_in_call("", *NO_SITE)
            self._shown = None

    def settle(self) -> None:
        """Withdraw a call whose wrapper an exception has ended before leave()."""
        shown = self._shown
        if shown is not None and not self.current():
            self._recorder.set_in_call("", *NO_SITE)
            self._shown = None
            if self.current():  # begun just now, by another thread
                self._recorder.set_in_call(*shown)
                self._shown = shown


class Process:
    """The agent in this process. A fork's child has none until it becomes a rank itself.

    c10d is torch.distributed.distributed_c10d, directory that of the run, empty where
    no supervisor has made one; adopt is called with each group whose class is
    written in Python; recorders are c10d's own, and torch_lacks names what we rely on
    and this torch has not. The methods that begin with before_ and after_ are
    called around torch's own functions, inside a guard.
    """

    def __init__(  # noqa: PLR0913 (what it works on, and what Hooks knows)
        self,
        c10d: Any,
        recorder: Recorder,
        directory: str,
        adopt: Callable[[Any], None],
        recorders: Recorders,
        torch_lacks: str,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.pid = os.getpid()
        self.page = ""
        """Path of the page, empty before there is one."""
        self.disarmed = ""
        """The reason for which nothing is recorded any more, or empty."""
        self._c10d = c10d
        self._recorder = recorder
        self._directory = directory
        self._unwrapped = None if directory else Unwrapped(environ)
        self._environ = environ
        self._prefixes = known_prefixes()
        self._phase = self._phase_before = "born"
        self._phase_shown = "born"
        self._joining = False
        """True from the call of init_process_group until after_init() has done its work."""
        self._making = ""
        """Path of a page that is being made, or is made."""
        self._awaits_end = False
        """True once the page is sure to show how a child of multiprocessing ended."""
        self._sampler: Sampler | None = None
        self._thread: Periodic | None = None
        self.guard = Guard(
            recorder.count_swallowed, self.disarm, lambda error: keep_fault(self._directory, error)
        )
        self.calls = SetupCalls(recorder, self._prefixes)
        self._adopt_group = adopt
        self._bypasses = Bypasses()
        self._bypasses.look()
        self.groups = Groups(c10d, recorder, self._adopt, self._leave_out, self._use_backends)
        self.custom = CustomCalls(recorder, self.groups, self.guard, self._prefixes)
        self._recorders = recorders
        self._lacks = torch_lacks
        self._flight = FlightRecorder(recorders, answer_request=recorder.answer_request)
        self._exceptions = Exceptions(recorder, self._prefixes)
        self.marks = Marks(recorder, self._prefixes)
        self._practice = Practice(self.groups, self._prefixes)
        recorder.set_prefixes(self._prefixes.internal, self._prefixes.program)

    @property
    def active(self) -> bool:
        """True if this process still records, and is not a fork of the one that does."""
        return not self.disarmed and self.pid == os.getpid()

    def take_launched_page(self) -> None:
        """Take a page if the launcher started this very process as a rank."""
        launched = ranks.launched_as(self._environ)
        if launched and not ranks.is_launcher(sys.orig_argv):
            self.open_page(*launched, inherited=True)

    def open_page(
        self, rank: int, world_size: int, *, meeting: str = "", inherited: bool = False
    ) -> None:
        """Take a page as that rank. Where none can be made, nothing is recorded here.

        meeting: the URL by which the ranks find each other, where one was given.
        inherited: what a rank has started has its RANK, and is not the rank.
        """
        try:
            if self._unwrapped is not None:
                self._directory = self._unwrapped.join(meeting)
            restart = ranks.restart_count(self._environ)
            if not (inherited and ranks.descends_from_rank(self._directory, restart, rank)):
                self._make_page(rank, world_size)
        except OSError as error:
            if is_foreign(error):
                raise
            self.disarm(f"its page cannot be made: {error}")
            self._report(error)
        finally:
            if self._unwrapped is not None:
                self._see_to_watch(self._unwrapped)

    def _make_page(self, rank: int, world_size: int) -> None:
        identity = ranks.identity(self._environ, rank, world_size)
        identity["program"] = readable(next(iter(self._prefixes.program), ""))
        path = ranks.page_path(self._directory, identity["restart"], rank, self.pid)
        # An exception that is not ours may have struck when it was just made.
        if path != self._making or not os.path.exists(path):
            with Ignoring(FileNotFoundError):
                os.unlink(path)  # of the program that this process was before it called exec
            self._making = path
            self._recorder.open_page(path, identity)
            self._recorder.set_torch_lacks(self._torch_lacks())
        self.page = path
        current_stream = stream_function()
        if current_stream is not None:
            self._recorder.use_streams(current_stream)

    def _see_to_watch(self, unwrapped: Unwrapped) -> None:
        try:
            unwrapped.see_to_watch(wanted=bool(self.page))
        except OSError as error:
            if is_foreign(error):
                raise
            self._report(error)

    def _report(self, error: OSError) -> None:
        """Leave ``error`` to the watchdog; where there may be none, print it."""
        record_failure(self._directory, error)
        if self._unwrapped is not None and self._directory:
            say_unwatched(error)

    def _handles(self, error: BaseException) -> None:
        if self.marks.guard.open:
            with self.marks.guard:
                self.marks.handles(error)

    def disarm(self, reason: str) -> None:
        """Stop recording for good; the job goes on alone."""
        self.disarmed = reason
        self._recorder.set_disarmed(reason)
        self._recorder.disarm()

    # Around torch.distributed.init_process_group, with its arguments.

    def before_init(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take a page, and sample: the rank may wait for its peers for ever."""
        self._joining = True
        rank, world_size = ranks.announced(args, kwargs, self._environ)
        if rank >= 0 and not self.page:
            self.open_page(rank, world_size, meeting=ranks.init_method(args, kwargs))
        if not self._awaits_end:
            self._awaits_end = True
            at_end_of_child(self._end_of_child_raised, self._end_of_child)
        self._set_phase("init")
        self._start_sampling()
        self._practice.attach()
        self.marks.attach()

    def after_init(self, *, failed: bool) -> None:
        """Note that the default group exists, or could not be made."""
        if failed:
            if self._phase == "init":
                self._set_phase(self._phase_before)
            self._joining = False
            return
        rank, world_size = self._c10d.get_rank(), self._c10d.get_world_size()
        if not self.page and self.active:
            self.open_page(rank, world_size)
            self._start_sampling()
        if self.page:
            address = ranks.store_address(self._c10d._world, self._environ)
            self._recorder.set_identity(rank, world_size, *address)
            self._set_phase("running")
            self.groups.update()
        self._joining = False

    # Around destroy_process_group and its like.

    def before_destroy(self, group: Any) -> str | None:
        """Sample the groups that are about to go: all if group is None or the default one.

        Returns the name of the group that goes, "" for none of torch's, None for all.
        """
        whole = group is None or group is self._c10d._world.default_pg
        if whole:
            self._set_phase("finalizing")
        self.groups.update()  # one that an exception kept us from seeing is not to be missed
        if self._sampler is not None:
            # The last chance to see what C++ has issued.
            if whole or (len(self.groups) < MANY_GROUPS and not self._flight.resting):
                self._sampler.sample_groups()
            else:
                self._sampler.sample_one(group)
        return None if whole else str(self._c10d._world.pg_names.get(group, ""))

    def after_destroy(self, group: Any, name: str | None, *, failed: bool) -> None:
        """Retire the groups that are gone. name is what before_destroy returned."""
        if failed and self._phase == "finalizing":
            self._set_phase(self._phase_before)
        self.groups.update(None if failed else group)
        self._flight.forget_ended(name)

    def settle(self) -> None:
        """Put right what exceptions that are not ours have left half done."""
        self.groups.catch_up()
        if self._joining and not any(call.name == _NAMED_INIT for call in self.calls.current()):
            self.after_init(failed=self._c10d._world.default_pg is None)
        self.calls.settle()
        if self._phase != self._phase_shown:
            self._set_phase(self._phase)

    def _leave_groups_alone(self) -> bool:
        """Return True while groups are destroyed: a reference of ours would outlive them."""
        return any(call.destroying for call in self.calls.current())

    def _use_backends(self, group: Any, names: Iterable[str]) -> None:
        """Read the recorders of a group's backends; report the backends that have none."""
        known = len(self._recorders.unrecorded)
        for name in names:
            if self._recorders.add(name, reports_completion=reports_completion(group)):
                self._recorder.add_dump(name)
        if len(self._recorders.unrecorded) > known:
            self._show_lacks()

    def _adopt(self, group: Any) -> None:
        """Record a group whose class is written in Python; report what cannot be recorded."""
        self._adopt_group(group)
        if self._bypasses.take_over(type(group), self._c10d.ProcessGroup, self._c10d):
            self._show_lacks()

    def _look_for_bypasses(self) -> None:
        if self._bypasses.look():
            self._show_lacks()

    def _show_lacks(self) -> None:
        if self.page:
            self._recorder.set_torch_lacks(self._torch_lacks())

    def _torch_lacks(self) -> str:
        lacks = (self._lacks, self._recorders.lack(), *self._bypasses.found)
        return "; ".join(filter(None, lacks))

    def _leave_out(self, group: Mapping[str, Any]) -> None:
        """Write a group that the page has no room for into a file next to it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with Ignoring(OSError):
            file = os.open(self.page + ".groups", flags | os.O_NONBLOCK, 0o600)
            try:
                if os.fstat(file).st_size < MAX_LEFT_OUT_BYTES:
                    os.write(file, json.dumps(group).encode() + b"\n")
            finally:
                os.close(file)

    def finish(self) -> None:
        """Stop everything, as the interpreter is ending, and record how it ended."""
        if self.pid != os.getpid() or not self.page:
            return
        raised = self._exceptions.uncaught() is not None or self._exceptions.recorded
        try:  # a signal handler of the program's may raise in any of these
            self._exceptions.record_uncaught()
            if self._thread is not None and self._thread.stop() and self._sampler is not None:
                self._sampler.sample_groups()
            self._look_for_bypasses()
            self._practice.finish(self.page)
        finally:
            self._set_phase("raised" if raised else "exited")
        self._recorder.stop_heartbeat()
        if raised and self._thread is not None:
            # It cannot be asked later what C++ had issued, and a mismatch shows only there.
            self._flight.leave(self.page)

    def _end_of_child_raised(self) -> None:
        """Record the exception that ends the main thread; other threads may live on."""
        with self.guard:
            error = error_of_child()
            if error is not None and self.active and self.page:
                self._exceptions.record(error)

    def _end_of_child(self) -> None:
        """Record that a fork of multiprocessing ends well: no atexit handler runs in it."""
        with self.guard:
            if fork_ends_well() and not has_other_threads():
                self.finish()

    def _set_phase(self, phase: str) -> None:
        if phase != self._phase:
            self._phase_before, self._phase = self._phase, phase
        self._recorder.set_phase(phase)
        self._phase_shown = phase

    def _start_sampling(self) -> None:
        if self.page and self._sampler is None:
            self._recorder.start_heartbeat(HEARTBEAT_MS, looks_for_stragglers(self._environ))
            sampler = Sampler(
                self._recorder,
                self.groups,
                self._flight,
                self._exceptions,
                self.page,
                self._leave_groups_alone,
                self._handles,
            )

            def run() -> None:
                self.settle()
                sampler.sample()
                self._look_for_bypasses()
                self.custom.end_finished_waits()
                if not self._leave_groups_alone():
                    self._practice.look(self.page, busy=self._flight.host_may_wait)

            self._sampler = sampler
            self._thread = Periodic(run, PERIOD_S, self.guard, self._recorder)
