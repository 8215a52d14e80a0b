"""Starts the ranks of a job: ranks.py NUMBER PROGRAM [ARGUMENT...]; their launcher.

torch is imported once and the ranks are forks, as torch.multiprocessing's start method
"fork" makes them: a job costs one import. The store is the launcher's, as torchrun's is.
Of a job on several nodes, each with a launcher, CAMPAIGN_WORLD_SIZE is its size and
CAMPAIGN_FIRST_RANK the first rank of this one; the launcher of rank 0 has the store.
CAMPAIGN_STORE names the file that its port is written to, CAMPAIGN_STORE_PORT is the one
that the ranks are given instead, for something that stands before it. CAMPAIGN_LAUNCHERS
of them start their ranks together, once torch is imported everywhere.
Ends with the exit code of the first rank that failed, 128+n for signal n, and ends the
others then, as launchers do.
"""

import os
import runpy
import signal
import sys
import time

GRACE_S = 5.0


def main():
    number, program, *arguments = int(sys.argv[1]), *sys.argv[2:]
    first = int(os.environ.get("CAMPAIGN_FIRST_RANK", "0"))
    import torch.distributed

    store = None
    if first == 0:
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = os.environ.get("CAMPAIGN_STORE_PORT") or str(store.port)
    if store is not None and "CAMPAIGN_STORE" in os.environ:
        with open(os.environ["CAMPAIGN_STORE"] + ".new", "w") as file:
            file.write(str(store.port))
        os.rename(os.environ["CAMPAIGN_STORE"] + ".new", os.environ["CAMPAIGN_STORE"])
    together(first)
    pids = {}
    for rank in range(number):
        pid = os.fork()
        if pid == 0:
            be_rank(first + rank, number, port, program, arguments)
        pids[pid] = rank
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda signum, _: [os.kill(pid, signum) for pid in pids])
    failed = 0
    while pids:
        pid, status = os.wait()
        if pids.pop(pid, None) is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code and not failed:
            failed = code if code > 0 else 128 - code
            for other in pids:
                os.kill(other, signal.SIGTERM)
            end(pids)
    sys.exit(failed)


def together(first):
    """Wait for the launchers of the other nodes, so that no rank waits for another's import."""
    if "CAMPAIGN_LAUNCHERS" not in os.environ:
        return
    name = os.path.basename(os.environ["CAMPAIGN_STORE"]) + ".up-"
    where = os.path.dirname(os.environ["CAMPAIGN_STORE"])
    open(os.path.join(where, name + str(first)), "w").close()
    deadline = time.monotonic() + 60
    while sum(one.startswith(name) for one in os.listdir(where)) < int(
        os.environ["CAMPAIGN_LAUNCHERS"]
    ):
        if time.monotonic() > deadline:
            sys.exit("the launcher of another node has not come up")
        time.sleep(0.01)


def end(pids):
    """Wait for ranks that were asked to end, and end those that do not."""
    deadline = time.monotonic() + GRACE_S
    while pids and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        pids.pop(pid, None)
        time.sleep(0.01)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def be_rank(rank, number, port, program, arguments):
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - int(os.environ.get("CAMPAIGN_FIRST_RANK", "0"))),
        "WORLD_SIZE": os.environ.get("CAMPAIGN_WORLD_SIZE", str(number)),
        "LOCAL_WORLD_SIZE": str(number),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    sys.argv = [program, *arguments]
    code = 1
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # What multiprocessing does not do either is left out: a fork's atexit runs, as
        # that of a program would.
        import atexit
        import threading

        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


main()
