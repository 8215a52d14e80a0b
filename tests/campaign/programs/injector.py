"""Strikes a rank at one point of hangwatch's agent, as a signal or another thread would.

A point is an instruction at which the interpreter looks for signals, or runs code that
does; on a line without one, its first instruction. Points are named by file, function, line within
the function and place on the line ("-" where nothing is called): "groups.py:Groups.update+5.2".

The signal is made pending at the very instruction, and the interpreter delivers it where
it delivers all others. A tracing function cannot do that: it is Python itself, and would
get the signal. So a local variable of it dies when it returns, and the callback of a weak
reference to that one, which is C, makes the signal pending.
"""

import ctypes
import dis
import functools
import signal
import sys
import threading
import weakref

SIGNAL = signal.SIGUSR1
HELD_S = 15.0
"""How long a step of the main thread may take while the agent's own thread stands still."""
_CHECKS = {"CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "IMPORT_NAME", "BEFORE_WITH", "FOR_ITER"}
_OURS = ("/hangwatch/agent/", "/sitecustomize/sitecustomize.py")


class Struck(Exception):  # noqa: N818 (a user's own)
    """What a handler of the user's raises."""


RAISED = {
    "interrupt": KeyboardInterrupt,
    "error": Struck,
    "exit": SystemExit,
    "timeout": TimeoutError,
    "runtime": RuntimeError,
    "import": ImportError,
}
SENT = {"sent": Struck, "sent-interrupt": KeyboardInterrupt}
"""By PyThreadState_SetAsyncExc, as time-outs and notebooks do."""

_interrupt = ctypes.pythonapi.PyErr_SetInterruptEx
_interrupt.argtypes = [ctypes.c_int, ctypes.py_object]
_interrupt.restype = None
_send = ctypes.pythonapi.PyThreadState_SetAsyncExc
_send.argtypes = [ctypes.c_ulong, ctypes.py_object, ctypes.py_object]
_send.restype = None


class _Fuse:
    pass


@functools.cache
def points(code):
    """Offset -> name of each point of a code object."""
    file = code.co_filename.rpartition("/")[2]
    found, on_line, line = {}, {}, 0
    for step in dis.get_instructions(code):
        if step.starts_line:
            line = step.starts_line
            on_line.setdefault(line, ([], []))[0].append(step.offset)
        if line and step.opname in _CHECKS:
            on_line[line][1].append(step.offset)
    for line, (starts, checks) in on_line.items():
        for number, offset in enumerate(checks or starts[:1]):
            place = f"+{line - code.co_firstlineno}.{number if checks else '-'}"
            found[offset] = f"{file}:{code.co_qualname}{place}"
    return found


class Injector:
    """Of one rank: notes the points that each step reaches, or strikes at one of them."""

    def __init__(self, reenter, *, form="function"):
        """reenter(collect): what a handler does that calls torch.distributed."""
        self.reached = {}
        """step -> point -> how often, while it notes."""
        self.noting = False
        self.fired = self.raised = self.hits = self.steps = 0
        self.blocked = False
        """The main thread did not come by while the agent's thread stood still."""
        self._reenter = reenter
        self._step = ""
        self._point, self._hit, self._action = "", 0, ""
        self._own = threading.get_ident()
        self._thread_point, self._thread_left, self._thread_action = "", 0, ""
        self._go_on = threading.Event()
        self._fuse = None
        handler = {
            "function": self._function(),
            "method": self._handler,
            "partial": functools.partial(_handle_for, self),
            "object": _Handler(self),
        }[form]
        signal.signal(SIGNAL, handler)

    # The main thread.

    def enter(self, step, fault=None, hits=0):
        """A step begins; fault: (point, hit, action) to be done in it, hits of which have been."""
        self._step = step
        self.steps += 1
        self.fired = self.raised = 0
        self.hits = hits
        if fault is not None:
            self._point, self._hit, self._action = fault
        if fault is not None or self.noting:
            sys.settrace(self._called)

    def leave(self):
        """It is over."""
        sys.settrace(None)
        self._point = ""

    def _called(self, frame, _event, _arg):
        file = frame.f_code.co_filename
        if not any(part in file for part in _OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._traced

    def _traced(self, frame, event, _arg):
        name = points(frame.f_code).get(frame.f_lasti) if event == "opcode" else None
        if name is None:
            return self._traced
        if threading.get_ident() != self._own:
            self._in_thread(name)
        elif self.noting:
            reached = self.reached.setdefault(self._step, {})
            reached[name] = reached.get(name, 0) + 1
        elif name == self._point:
            self.hits += 1
            if self.hits == self._hit:
                sys.settrace(None)
                fuse = _Fuse()
                self._fuse = weakref.ref(fuse, self._trip())
        return self._traced

    def _trip(self):
        kind = SENT.get(self._action)
        if kind is None:
            return functools.partial(_interrupt, int(SIGNAL))
        self.fired = self.raised = 1
        return functools.partial(_send, self._own, kind)

    def _handler(self, _signum, _frame):
        self._handle()

    def _function(self):
        def handler(_signum, _frame):
            self._handle()

        return handler

    def _handle(self):
        sys.settrace(None)
        self.fired += 1
        if self._action in RAISED:
            self.raised += 1
            raise RAISED[self._action]("struck")
        self._reenter(self._action)

    # The agent's thread.

    def strike_thread(self, fault):
        """fault: (point, hit, action) to be done in the agent's own thread."""
        from hangwatch.agent.periodic import Periodic

        if fault:
            self._thread_point, self._thread_left, self._thread_action = fault
        elif not self.noting:
            return
        loop = Periodic._loop

        def traced(periodic):
            sys.settrace(self._called)
            loop(periodic)

        Periodic._loop = traced

    def come_by(self):
        """The main thread has come to an end of its steps: nobody stands still any more."""
        self._go_on.set()

    def _in_thread(self, name):
        if self.noting:
            reached = self.reached.setdefault("thread", {})
            reached[name] = reached.get(name, 0) + 1
        elif name == self._thread_point:
            self._thread_left -= 1
            if self._thread_left == 0:
                sys.settrace(None)
                if self._thread_action == "hold":
                    self._stand_still()
                else:
                    self._reenter(self._thread_action)

    def _stand_still(self):
        """Until the main thread comes by, or does not get on either."""
        steps = -1
        while not self._go_on.wait(HELD_S) and not self.blocked:
            self.blocked, steps = steps == self.steps, self.steps


def _handle_for(injector, _signum, _frame):
    injector._handle()


class _Handler:
    def __init__(self, injector):
        self._injector = injector

    def __call__(self, _signum, _frame):
        self._injector._handle()
