"""Python processes that are struck at their start, or while they import torch, one by one.

plan.json: [{"form", "note", "fault": [step, point, hit, action]}...]. Each runs ``python -S
imported.py NUMBER``, which starts the site module itself, to be there before sitecustomize,
and leaves log-NUMBER. Exit code 7 where an exception came out of the start or the import.
"""

import json
import subprocess
import sys


def main():
    with open("plan.json") as file:
        plan = json.load(file)
    for number in range(len(plan)):
        command = [sys.executable, "-S", __file__, str(number)]
        ran = subprocess.run(command, check=False)
        print(f"process {number} ended with {ran.returncode}", flush=True)


def be_one(number):
    from injector import Injector

    with open("plan.json") as file:
        plan = json.load(file)[number]
    injector = Injector(collect, form=plan["form"])
    injector.noting = plan["note"]
    log = {"fired": 0, "raised": 0, "seen": 0}
    for step, call in (("site", start), ("import", load)):
        fault = plan["fault"]
        own = fault and fault[0] == step
        try:
            injector.enter(step, fault[1:] if own else None)
            call()
            at_last()
        except BaseException:
            injector.leave()
            log["seen"] += 1
        injector.leave()
        if own:
            log |= {"fired": injector.fired, "raised": injector.raised}
        log["reached"] = injector.reached
        with open(f"log-{number}", "w") as file:
            json.dump(log, file)
        if log["seen"]:
            sys.exit(7)
        if step == "site" and own:
            return
    work()


def at_last():
    """What is sent to this thread has struck it now."""


def start():
    import site

    site.main()


def load():
    import torch.distributed  # noqa: F401 (which the agent waits for)


def work():
    import torch
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    given = torch.arange(3.0)
    dist.all_reduce(given)
    dist.destroy_process_group()
    print(given.tolist(), flush=True)


def collect(action):
    import gc

    class Holder:
        def __del__(self):
            gc.set_threshold(700, 10, 10)

    holder = Holder()
    holder.itself = holder
    del holder
    if action == "collect":
        gc.collect()
    else:
        gc.set_threshold(1, 1, 1)


if __name__ == "__main__":
    if sys.argv[1:]:
        be_one(int(sys.argv[1]))
    else:
        main()
