"""Attaches the agent to torch.distributed in this process, once.

The wrappers around torch's set-up functions show the call that the rank is in; those around its
stores show the key that the program waits for, and count the keys that it sets.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import threading
from itertools import product
from typing import TYPE_CHECKING, Any

from hangwatch.agent import environment, torch_api
from hangwatch.agent.environment import ANY_SUPERVISOR, SUPERVISOR_PID
from hangwatch.agent.inject.post_import import record_failure
from hangwatch.agent.inject.process import Process, SetupCall
from hangwatch.agent.record.custom_groups import wrap_class
from hangwatch.agent.record.groups import ASK_AGAIN, NO_SLOT
from hangwatch.agent.record.hidden_wrappers import standing_for, uncounted
from hangwatch.agent.record.recorder import choose
from hangwatch.agent.torch_api import GENERAL, NCCL
from hangwatch.safety.foreign import Ignoring, is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangwatch.agent.record.custom_groups import CustomCalls

_PR_SET_PTRACER = 0x59616D61  # "Yama", prctl(2)
_RELATIONS_ONLY = "1"


def allow_supervisor(
    environ: Mapping[str, str], scope: str = "/proc/sys/kernel/yama/ptrace_scope"
) -> bool:
    """Name the supervisor, and so all its descendants, as allowed tracers.

    A watchdog that several supervisors share may outlive the one that started it, and that of a
    node without a supervisor is started by a rank: for these any process of this user is named.

    Only where it is needed (Documentation/admin-guide/LSM/Yama.rst: in mode 1 a
    process may be traced by its ancestors and by whom it names, with descendants).
    """
    supervisor = environ.get(SUPERVISOR_PID, ANY_SUPERVISOR)
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


_NAMES = {
    "init_process_group": "init_process_group",
    "new_group": "new_group",
    "split_group": "split_group",
    "shrink_group": "shrink_group",
    "_new_group_with_tag": "new_group",
    "destroy_process_group": "destroy_process_group",
    "_abort_process_group": "destroy_process_group",
}
"""The set-up functions of torch that are wrapped, each with the name that users know."""

_STORES = ("TCPStore", "FileStore", "HashStore", "PrefixStore")
_WAITING = ("get", "multi_get", "wait", "queue_pop")
"""Methods of torch.distributed.Store that return once others have set a key."""
_SETTING = ("set", "multi_set", "add", "append", "compare_set", "queue_push")
_MARK = "_followed_by_hangwatch"

_installed: list[Hooks] = []


def install(c10d: Any, directory: str) -> None:
    """Attach to the module torch.distributed.distributed_c10d; once. Raises what goes wrong.

    directory is that of the run, empty where no supervisor of this node has made one.
    """
    if not _installed:
        hooks = Hooks(c10d, directory)
        _installed.append(hooks)
        hooks.install()


class Hooks:
    """The wrappers around torch's set-up functions, and the Process that they report to."""

    def __init__(self, c10d: Any, directory: str) -> None:
        self._c10d = c10d
        self._directory = directory
        self._recorder = choose()
        self._wrapped: list[str] = []
        """Names of torch's methods that are recorded."""
        self._process: Process | None = None
        """None in a fork's child."""

    def install(self) -> None:
        """Arm this process. Raises what goes wrong."""
        if self._c10d._world.default_pg is not None:
            # Earlier calls are in c10d's numbers already, and cannot be separated from later ones.
            raise RuntimeError(
                "hangwatch.agent.arm() was called after init_process_group: call it before"
            )
        version = getattr(sys.modules.get("torch"), "__version__", None)
        environment.enable_flight_recorder(os.environ, version)
        allow_supervisor(os.environ)
        self._wrapped = self._recorder.wrap_methods(
            self._c10d.ProcessGroup, self._c10d.Work, self._native_slot, is_foreign
        )
        for name in _NAMES:
            self._wrap(name)
        self._follow_threads()
        follow_stores(sys.modules["torch._C._distributed_c10d"], lambda: self._process)
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._after_fork)
        self._process = self._new_process()
        self._process.take_launched_page()

    def _new_process(self) -> Process:
        recorders = torch_api.Recorders(sys.modules["torch._C._distributed_c10d"])
        gil_free = self._recorder.use_dumps(NCCL in recorders.dumps, GENERAL in recorders.dumps)
        lacks = torch_api.lacks(self._c10d, recorders, self._wrapped, gil_free=gil_free)
        return Process(
            self._c10d, self._recorder, self._directory, self._adopt, recorders, "; ".join(lacks)
        )

    def _native_slot(self, group: Any) -> int:
        process = self._process
        if process is None:
            return NO_SLOT
        with process.guard:
            process.settle()
            return process.groups.native_slot(group)
        return ASK_AGAIN  # an error of ours was swallowed

    def _adopt(self, group: Any) -> None:
        wrap_class(type(group), self._c10d.ProcessGroup, self._custom_calls)

    def _custom_calls(self) -> CustomCalls | None:
        process = self._process
        return process.custom if process is not None and process.active else None

    def _wrap(self, name: str) -> None:
        """Replace the function, with its signature, wherever it has been imported to."""
        original = getattr(self._c10d, name, None)
        if original is None:
            return  # this torch has no such function

        @standing_for(original)
        @uncounted
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, original, args, kwargs)

        setattr(self._c10d, name, wrapper)
        late = hasattr(sys.modules.get("torch.distributed"), name)  # hangwatch.agent.arm
        if late:
            for module in list(sys.modules.values()):
                if getattr(module, "__dict__", {}).get(name) is original:
                    setattr(module, name, wrapper)

    def _follow_threads(self) -> None:
        """Note what ends a thread, before the hook of the program is called."""
        former = threading.excepthook

        def hook(failed: threading.ExceptHookArgs, /) -> Any:
            process = self._process
            if process is not None and process.active and process.marks.guard.open:
                with process.marks.guard:
                    process.marks.thread_died(failed)
            return former(failed)

        threading.excepthook = hook

    @uncounted
    def _call(
        self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make the user's call, with ours around it."""
        process = self._process_for(name)
        if process is None or not process.active:
            return original(*args, **kwargs)
        destroys = _NAMES[name] == "destroy_process_group"
        call = SetupCall(_NAMES[name])
        group = kwargs.get("group", args[0] if args else None) if destroys else None
        failed = True
        try:
            # What is not ours passes through each of these, and all the rest is done still.
            with process.guard:
                self._before(process, call, original, group, args, kwargs)
            result = original(*args, **kwargs)
            failed = False
            return result
        finally:
            try:
                with process.guard:
                    self._after(process, call, group, failed=failed)
            finally:
                with process.guard:
                    process.calls.leave(call)

    def _before(  # noqa: PLR0913 (what was called, and with what)
        self,
        process: Process,
        call: SetupCall,
        original: Callable[..., Any],
        group: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        outermost = process.calls.begin(call)
        if call.name == "init_process_group":
            process.before_init(args, kwargs)  # before the call is shown: it may make the page
        if outermost:
            makes = call.name == "new_group"
            new = new_group(self._c10d, original, args, kwargs) if makes else None
            process.calls.show(call, sys._getframe(), new)
        if call.name == "destroy_process_group":
            call.leaving = process.before_destroy(group)
            call.destroying = True

    def _after(self, process: Process, call: SetupCall, group: Any, *, failed: bool) -> None:
        if call.name == "init_process_group":
            process.after_init(failed=failed)
        elif call.name == "destroy_process_group":
            call.destroying = False
            process.after_destroy(group, call.leaving, failed=failed)
        else:
            process.groups.update()

    def _process_for(self, name: str) -> Process | None:
        """Return the Process; a fork's child that becomes a rank gets one of its own."""
        if self._process is None and name == "init_process_group":
            try:
                self._process = self._new_process()
            except Exception as error:
                if is_foreign(error):
                    raise
                record_failure(self._directory, error)
        return self._process

    def _at_exit(self) -> None:
        process = self._process
        if process is not None:
            with process.guard:
                process.finish()

    def _after_fork(self) -> None:
        self._process = None
        with Ignoring(Exception):
            allow_supervisor(os.environ)


def new_group(
    c10d: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, Sequence[int]] | None:
    """Return (number, ranks) of the group that a call of torch's function makes (see PageNewGroup).

    None where there is no job yet, or no valid call. Of ranks only a plain list is read: an
    iterator could be read only once.
    """
    world = c10d._world
    if world.default_pg is None:
        return None
    try:
        asked = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        if is_foreign(error):
            raise
        return None  # torch says what is wrong with it
    ranks = asked.get("ranks")
    if ranks is None:
        ranks = range(world.default_pg.size())
    plain = isinstance(ranks, list | tuple | range) and all(type(rank) is int for rank in ranks)
    by_members = asked.get("use_local_synchronization")
    number = -1 if by_members else getattr(world, "group_count", -1)
    return number, sorted(ranks) if plain else ()


def follow_stores(c10d: Any, process: Callable[[], Process | None]) -> None:
    """Wrap the methods of torch's own stores, once, for the main thread of a rank.

    Not of Store, their base: C++ takes a function of Python's there for one by which a store
    that is written in Python overrides its own, and would call it for ever.

    c10d is the module torch._C._distributed_c10d; process() returns the agent of this process,
    None in a fork's child.
    """
    stores = [store for name in _STORES if (store := getattr(c10d, name, None)) is not None]
    for store, (names, around) in product(stores, ((_WAITING, _wait), (_SETTING, _set))):
        for name in names:
            original = getattr(store, name, None)  # an older torch has not all of them
            if original is not None and not hasattr(original, _MARK):
                setattr(store, name, _wrapper(name, original, around, process))


def _wrapper(
    name: str,
    original: Callable[..., Any],
    around: Callable[..., Any],
    of_this: Callable[[], Process | None],
) -> Callable[..., Any]:
    @standing_for(original)
    @uncounted
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        process = of_this()
        if (
            process is None
            or not process.active
            or not process.marks.guard.open
            or threading.current_thread() is not threading.main_thread()
            or process.calls.current()  # torch itself, in a call that is shown
        ):
            return original(self, *args, **kwargs)
        return around(process, name, original, self, *args, **kwargs)

    setattr(wrapper, _MARK, True)
    return wrapper


@uncounted
def _wait(
    process: Process, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Make a call that may block, and show it meanwhile."""
    call = SetupCall(f"store.{name}")
    try:
        with process.marks.guard:
            frame = sys._getframe()
            process.marks.awaits(_keys(args, kwargs), frame)
            process.calls.begin(call)
            process.calls.show(call, frame, None)
        return original(*args, **kwargs)
    finally:
        with process.marks.guard:
            process.calls.leave(call)


@uncounted
def _set(
    process: Process, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    result = original(*args, **kwargs)
    with process.marks.guard:
        if name != "add" or args[2:] != (0,):  # to add nothing is to ask
            process.marks.sets(_keys(args, kwargs), sys._getframe())
    return result


def _keys(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the keys of a call, whose first argument is the store."""
    asked = args[1] if len(args) > 1 else kwargs.get("key", kwargs.get("keys", ()))
    several = [asked] if isinstance(asked, str) else asked
    return [key for key in several if isinstance(key, str)] if isinstance(several, list) else []
