"""What setups.py does: acts that leave the rank as it was, and such as end it."""

import ctypes
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time

CODE = 5
LINGER_S = 0.5
PATIENCE_S = 60.0
kept_groups = []
"""Of a job whose forks end as a program does."""


def say(*words):
    """Print in one piece: other processes do so at the same time."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def in_child(run):
    """Do it in a fork, and wait for its end."""
    pid = os.fork()
    if pid == 0:
        run()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    say("a fork ended with", os.waitstatus_to_exitcode(status))


def fork_exits(_):
    in_child(lambda: os._exit(3))


def fork_leaves(_):
    pid = os.fork()
    if pid == 0:
        never_free_groups()
        sys.exit(4)
    _, status = os.waitpid(pid, 0)
    say("a fork ended with", os.waitstatus_to_exitcode(status))


def never_free_groups():
    """For a fork: gloo's destructor waits for threads that it does not have, also bare."""
    for group in kept_groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def fork_raises(_):
    pid = os.fork()
    if pid == 0:
        never_free_groups()
        raise RuntimeError("in a fork")
    _, status = os.waitpid(pid, 0)
    say("a fork ended with", os.waitstatus_to_exitcode(status))


def fork_lives(_):
    in_child(use_dist)


def use_dist():
    """A while of calls that a fork may make."""
    until = time.monotonic() + LINGER_S
    dist = sys.modules.get("torch.distributed")
    while time.monotonic() < until:
        if dist is not None and dist.is_initialized():
            assert dist.get_rank() == int(os.environ["RANK"])
            assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
        time.sleep(0.01)


def fork_is_rank(_):
    """A fork is the only rank of a job of its own."""
    in_child(be_rank)


def be_rank():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    given = torch.ones(2)
    dist.all_reduce(given)
    dist.destroy_process_group()
    say("a job of one:", given.tolist())


def worker(method):
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    process = context.Process(target=work, args=(results,))
    process.start()
    say("a worker says", results.get())
    process.join()
    assert process.exitcode == 0


def work(results):
    results.put(sum(range(10)))


def start_program(_):
    command = [sys.executable, "-c", "import threading, sys; print(1 + 1); sys.exit(3)"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    say("a program says", ran.stdout.strip(), ran.stderr.strip(), ran.returncode)


def subinterpreter(_):
    import _xxsubinterpreters as interpreters

    for _ in range(2):
        number = interpreters.create()
        interpreters.run_string(number, "import sys, threading, json; json.dumps(sys.path)")
        interpreters.destroy(number)
    say("interpreters ended")


def exec_itself(_):
    os.environ["AGAIN"] = "1"
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 (itself)


def exec_another(_):
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-c", "print('another program')"])  # noqa: S606


def become_daemon(_):
    """The rank goes on in the background; what was started waits for its end."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(reading)
    os.set_inheritable(writing, False)  # noqa: FBT003


def linger(*, daemon):
    thread = threading.Thread(target=time.sleep, args=(LINGER_S,), daemon=daemon)
    if daemon:
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()


def thread_leaves(_):
    thread = threading.Thread(target=sys.exit, args=(CODE,))
    thread.start()
    thread.join()


def many_groups(number, given):
    """Groups of any members, used once each, and destroyed in another order."""
    import torch.distributed as dist

    dice = random.Random(number)  # noqa: S311 (the same on each rank)
    size, rank = dist.get_world_size(), dist.get_rank()
    groups = []
    for _ in range(number):
        members = sorted(dice.sample(range(size), dice.randint(1, size)))
        groups.append((members, dist.new_group(members)))
    for members, group in groups:
        if rank in members:
            dist.all_reduce(given, group=group)
            given /= len(members)
    dice.shuffle(groups)
    for members, group in groups:
        if rank in members:
            dist.destroy_process_group(group)


def threads_of_groups(value, given):
    """Four threads at once, each in a group of its own; "make": they make them, in turn."""
    import torch
    import torch.distributed as dist

    everyone = list(range(dist.get_world_size()))
    groups = [None if value == "make" else dist.new_group(everyone) for _ in range(4)]
    turn = threading.Condition()
    done = []

    def run(number):
        if value == "make":
            with turn:
                turn.wait_for(lambda: len(done) == number, PATIENCE_S)
                groups[number] = dist.new_group(everyone)
                done.append(number)
                turn.notify_all()
        own = torch.ones(4)
        for _ in range(20):
            dist.all_reduce(own, group=groups[number])
            own /= len(everyone)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given += 1


def raise_unhandled():
    raise LookupError("of the user's own")


ACTS = {
    "fork-exits": fork_exits,
    "fork-leaves": fork_leaves,
    "fork-raises": fork_raises,
    "fork-lives": fork_lives,
    "fork-is-rank": fork_is_rank,
    "worker": worker,
    "program": start_program,
    "subinterpreter": subinterpreter,
    "exec-itself": exec_itself,
    "exec-another": exec_another,
    "daemon": become_daemon,
    "thread-leaves": thread_leaves,
    "thread-lingers": lambda _: linger(daemon=False),
    "daemon-thread": lambda _: linger(daemon=True),
}
ENDS = {
    "sys.exit": lambda: sys.exit(CODE),
    "os._exit": lambda: os._exit(CODE),
    "raise": raise_unhandled,
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
