"""A job of two ranks that is struck while it calls torch.distributed, and goes on.

plan.json says who is struck where: {"note": bool, "rank": r, "form": kind of handler,
"faults": [[step, point, hit, action]...], "thread": [point, hit, action] or [],
"trains": how often a model is trained, which costs the import of a compiler}. Each step
whose call was not made, since an exception came before it, is tried again, as a program
would that survives a Ctrl-C; c10d's own counters tell whether it was made. log-RANK says
what came of it. Rank 1 stays away until there is ``release``.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import time

import torch
import torch.distributed as dist
from injector import Injector
from torch.distributed import distributed_c10d as c10d

ROUNDS = 4
TRIES = 8
THRESHOLDS = (700, 10, 10)
FOUND_S = 10.0


class Holder:
    """Destroys its group when it goes, in the middle of whatever allocates then."""

    def __init__(self, group):
        self.group, self.itself = group, self

    def __del__(self):
        gc.set_threshold(*THRESHOLDS)
        Program.freed += 1
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)


class Program:
    freed = 0

    def __init__(self):
        with open("plan.json") as file:
            plan = json.load(file)
        self.rank = int(os.environ["RANK"])
        struck = self.rank == plan["rank"]
        self.faults = plan["faults"] if struck else []
        self.thread = plan["thread"] if struck else None
        self.hits = {}
        """How often the point of a fault was reached in steps before."""
        self.trains = plan["trains"]
        self.injector = Injector(self.reenter, form=plan["form"])
        self.injector.noting = plan["note"] and struck
        self.log = {"struck": [], "trouble": []}
        self.out = open(f"out-{self.rank}", "w", buffering=1)
        self.spare = []
        """Groups of this rank alone, which garbage and handlers destroy."""
        self.pair = self.own = self.work = self.made = None
        self.state = torch.arange(64, dtype=torch.float64) * (self.rank + 1)

    # What a handler, or garbage, does.

    def reenter(self, action):
        group = self.spare.pop() if self.spare else None
        if action in ("collect", "allocate"):
            holder = Holder(group)
            del holder, group
            if action == "collect":
                gc.collect()
            else:
                gc.set_threshold(1, 1, 1)  # at the next allocation, wherever that is
            return
        if not dist.is_initialized():
            return
        assert dist.get_rank() == self.rank
        if self.own is not None:
            dist.all_reduce(torch.ones(1), group=self.own)
        with contextlib.suppress(ValueError):  # torch may find a name that it has given already
            made = dist.new_group([self.rank], use_local_synchronization=True)
            dist.all_reduce(torch.ones(1), group=made)
            dist.destroy_process_group(made)
        if group is not None:
            dist.destroy_process_group(group)

    # Steps.

    def step(self, name, call, count=None):
        """Make the call of a step, once; count() grows when it was made.

        Without count the call may be made again where an exception came in between.
        """
        for _ in range(TRIES):
            fault = next((one for one in self.faults if one[0] == name), None)
            before, hits = count() if count else 0, self.hits
            self.made, seen = None, 0
            try:
                self.injector.enter(name, fault and fault[1:], hits.get(str(fault), 0))
                self.made = call()
                at_last()
            except BaseException as error:
                self.injector.leave()
                seen = 1
                if not self.injector.raised:
                    self.trouble(f"{name} raised {type(error).__name__}: {error}")
            self.injector.leave()
            gc.set_threshold(*THRESHOLDS)
            if fault is not None:
                self.faults.remove(fault)
                if self.injector.fired:
                    self.log["struck"].append([*fault, self.injector.raised, seen])
                else:  # it comes up again, behind the others
                    self.faults.append(fault)
                    hits[str(fault)] = self.injector.hits
            grown = count() - before if count else not seen
            if grown > 1:
                self.trouble(f"{name} was made {grown} times")
            self.write()
            if grown:
                return
            if not seen:
                self.trouble(f"{name} returned, and was not made")
                return
        self.trouble(f"{name} could not be made")

    def trouble(self, text):
        self.log["trouble"].append(text)
        self.write()

    def write(self):
        # Copies at once: the agent's thread goes on noting.
        reached = dict(self.injector.reached)
        self.log["reached"] = {step: dict(found) for step, found in reached.items()}
        self.log["blocked"] = self.injector.blocked
        self.log["freed"] = Program.freed
        with open(f"log-{self.rank}.new", "w") as file:
            json.dump(self.log, file)
        os.rename(f"log-{self.rank}.new", f"log-{self.rank}")

    def run(self):
        self.step("arm", arm)
        if os.environ.get("WATCHED"):
            self.injector.strike_thread(self.thread)
        self.step("init", lambda: dist.init_process_group("gloo"), dist.is_initialized)
        self.world = dist.group.WORLD
        for _ in range(1 + 2 * len(self.faults)):
            # torch names one by how many there are: after one that garbage in a thread has
            # destroyed it may find a name that it has given already. Then there are fewer.
            with contextlib.suppress(ValueError):
                self.spare.append(dist.new_group([self.rank], use_local_synchronization=True))
        for number in range(ROUNDS):
            self.round(number)
        for _ in range(self.trains):
            self.train()
        self.injector.come_by()
        if self.rank == 1:
            open(f"ready-{self.rank}", "w").close()
            while not os.path.exists("release"):
                time.sleep(0.01)
        dist.all_reduce(self.state)
        for group in (self.pair, self.own):
            dist.destroy_process_group(group)
        print("end", self.state.sum().item(), file=self.out)
        self.out.close()
        self.step("end", dist.destroy_process_group, lambda: not dist.is_initialized())
        self.step("exit", atexit._run_exitfuncs)
        self.log["finished"] = True
        self.write()
        # At once: two ranks write to one pipe.
        os.write(1, f"rank {self.rank} finished\n".encode())

    def round(self, number):
        if self.pair is not None:
            old, older = self.pair, self.own
            self.step("destroy", lambda: dist.destroy_process_group(old), gone(old))
            self.step("destroy", lambda: dist.destroy_process_group(older), gone(older))
        size = dist.get_world_size()
        self.pair = self.group(f"pair-{number}", list(range(size)))
        self.own = self.group(f"own-{number}", [self.rank], use_local_synchronization=True)
        pair, other = self.pair, torch.full((8,), float(self.rank + number))
        calls = numbers(pair)
        self.step("all_reduce", lambda: dist.all_reduce(other, group=pair), calls)
        self.step("broadcast", lambda: dist.broadcast(other, 1, group=pair), calls)
        peer = 1 - self.rank
        p2p = dist.send if self.rank else dist.recv
        self.step("p2p", lambda: p2p(other, peer, group=pair), calls)
        before = other.clone()
        self.step("async", lambda: dist.all_reduce(other, group=pair, async_op=True), calls)
        if self.made is None:  # its handle was lost with the exception
            deadline = time.monotonic() + FOUND_S
            while torch.equal(other, before) and time.monotonic() < deadline:
                time.sleep(0.01)
        else:
            work = self.made
            self.step("wait", work.wait)
        self.step("barrier", lambda: dist.barrier(group=pair), calls)
        self.compound(pair, other, number)
        self.state /= 3
        self.step("world", lambda: dist.all_reduce(self.state), numbers(self.world))
        print(number, self.state.sum().item(), other.sum().item(), file=self.out)

    def group(self, name, ranks, **kwargs):
        def own():
            return [one for one in c10d._world.pg_map if one.group_desc == name]

        call = functools.partial(dist.new_group, ranks, group_desc=name, **kwargs)
        self.step("new_group", call, lambda: len(own()))
        return own()[0]

    def compound(self, pair, other, number):
        """Calls that are several: nothing that raises comes in between."""
        gathered = [None, None]
        rank = self.rank
        self.step("objects", lambda: dist.all_gather_object(gathered, [rank, number]))
        listed = [number, "x" * number]
        self.step("objects", lambda: dist.broadcast_object_list(listed, 0, group=pair))
        operations = [
            dist.P2POp(dist.isend, other.clone(), 1 - rank, pair),
            dist.P2POp(dist.irecv, other, 1 - rank, pair),
        ]

        def batch():
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        self.step("batch", batch)
        print(gathered, listed, file=self.out)

    def train(self):
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        data = TensorDataset(torch.arange(32.0).reshape(8, 4) * (self.rank + 1))

        def train():
            parallel = torch.nn.parallel.DistributedDataParallel(model)
            optimizer = torch.optim.SGD(parallel.parameters(), 0.01)
            for (batch,) in DataLoader(data, batch_size=4):
                parallel(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        self.step("train", train)
        print([one.tolist() for one in model.parameters()], file=self.out)


def at_last():
    """What is sent to this thread has struck it now."""


def numbers(group):
    return group._get_sequence_number_for_group


def gone(group):
    return lambda: group not in c10d._world.pg_map


def arm():
    if os.environ.get("WATCHED"):
        os.environ.pop("HANGWATCH", None)
        from hangwatch import agent

        agent.arm()


if __name__ == "__main__":
    Program().run()
