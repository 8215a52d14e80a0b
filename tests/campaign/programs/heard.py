"""Starts a job whose launcher and ranks hear, ignore or die of signals.

    heard.py pair                      a launcher and one child, neither needs torch
    heard.py ranks.py 2 steps.py       a real job: ranks.py with its arguments

HEARD=handles: each process has a handler for all signals that notes what it is sent in
out-heard-ROLE, a line each, until there is a file ``gate``: what the end of the job itself
brings is left out. SIGCHLD is not handled, since it tells of children and not of whom it
was sent by. HEARD=ignores: all signals are ignored. HEARD=dies: the dispositions are what
the process was started with. HEARD_FORWARDS=1: the launcher is left its own handlers of
SIGINT and SIGTERM, which pass them on to the ranks.

Each role leaves its pid in pid-ROLE: ``launcher``, and the number of the rank.
"""

import os
import runpy
import signal
import sys
import time

MODE = os.environ["HEARD"]
FORWARDS = os.environ.get("HEARD_FORWARDS") == "1"
CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
SET = signal.signal


def main():
    # Where Python found it ignored it is left so, as nohup wants it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        SET(signal.SIGINT, signal.SIG_DFL)
    if MODE == "dies":
        for number in PYTHONS_OWN:
            SET(number, signal.SIG_DFL)
    elif MODE == "ignores":
        for number in CATCHABLE:
            SET(number, signal.SIG_IGN)
    else:
        for number in CATCHABLE:
            if number not in PYTHONS_OWN and signal.getsignal(number) is signal.SIG_IGN:
                continue
            SET(number, hear)
    tell_pid()
    os.register_at_fork(after_in_child=be_a_rank)
    if sys.argv[1] == "pair":
        pair()
        return
    if not FORWARDS:
        signal.signal = lambda *_: None
    del sys.argv[0]
    sys.argv[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), sys.argv[0])
    sys.argv[2] = os.path.join(os.path.dirname(os.path.abspath(__file__)), sys.argv[2])
    runpy.run_path(sys.argv[0], run_name="__main__")


def be_a_rank():
    signal.signal = SET


def role():
    return os.environ.get("RANK", "launcher")


def tell_pid():
    with open(f".pid-{role()}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f".pid-{role()}", f"pid-{role()}")


def hear(number, _):
    if not os.path.exists("gate"):
        heard = os.open(f"out-heard-{role()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(heard, b"%d\n" % number)
        os.close(heard)


def pair():
    child = os.fork()
    if child == 0:
        os.environ["RANK"] = "1"
        wait_at_the_gate(1)
        os._exit(0)
    wait_at_the_gate(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os.write(1, b"the child ended with %d\n" % code)
    sys.exit(3)


def wait_at_the_gate(number):
    open(f"ready-{number}", "w").close()
    while not os.path.exists("gate"):
        time.sleep(0.005)
    with open(f"out-{number}", "w") as file:
        file.write("went on\n")


main()
