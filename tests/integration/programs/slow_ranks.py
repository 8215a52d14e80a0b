"""A job of four ranks that goes well for a while, and then has ranks that make it slow.

slow_ranks.py KIND HEALTHY_S SLOW_S prints the milliseconds of a turn in either part.
"""

import gc
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from queue import Queue
from statistics import median
from subprocess import Popen
from threading import Event, Thread

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

KIND, HEALTHY_S, SLOW_S = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
stop_s = HEALTHY_S + SLOW_S
began_s = time.monotonic()
turns = 0
slow = False
times = []
"""At each tenth turn."""


def work(ms):
    """What a device would do meanwhile."""
    time.sleep(ms / 1e3)


def burn(ms):
    """Work on the CPU."""
    end_s = time.thread_time() + ms / 1e3
    matrix = torch.randn(64, 64)
    while time.thread_time() < end_s:
        matrix = torch.tanh(matrix @ matrix)


def late(ms, *ranks):
    """The fault: more of it on some ranks."""
    if slow and rank in ranks:
        work(ms)


def goes_on():
    """End a turn. All ranks come to the second part, and to the end, at one turn."""
    global turns, slow, began_s  # noqa: PLW0603
    turns += 1
    if turns % 10:
        return True
    times.append(time.monotonic())
    if len(times) == 1:
        began_s = times[0]  # the first turns take long on a machine that does other things
    passed_s = times[-1] - began_s
    state = torch.tensor([passed_s > HEALTHY_S, passed_s > stop_s])
    dist.broadcast(state, 0)
    if state[0] and not slow:
        slow = True
        tell("healthy")
        del times[:-1]
    if state[1]:
        tell("slow")
    return not state[1]


def tell(part):
    # Of ten turns together: the start of the job, and of others, would change a mean.
    ten_s = [after - before for before, after in pairwise(times)]
    if rank == 0:
        print(part, 100 * median(ten_s), flush=True)


def network():
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])


def train(model, before):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        before()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not goes_on():
            return


def data_parallel(before):
    train(DistributedDataParallel(network()), before)


def one_late(ms=60):
    work(40)
    late(ms, 2)


def two_late():
    work(40)
    late(25, 1, 2)


def two_of_a_node():
    work(40)
    late(60, 2, 3)


def first_writes():
    work(40)
    if slow and rank == 0:
        end_s = time.monotonic() + 0.03
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < end_s:
                file.write(bytes(1 << 16))
                file.flush()
                os.fsync(file.fileno())


def checkpoints():
    work(40)
    if turns % 10 == 9:
        late(400, 0)
        dist.barrier()


def collects():
    work(40)
    if slow and rank == 1:
        gc.collect()


def longer():
    burn(20 if slow and rank == 1 else 8)


def shares_a_core():
    """Other processes come to the core of a rank; the other ranks have another one."""
    with_others = rank == 1
    if turns == 0:
        os.sched_setaffinity(0, {min(CORES) if with_others else max(CORES)})
    if slow and with_others and not started:
        started.extend(Popen([sys.executable, "-c", SPIN]) for _ in range(4))
    burn(6)
    work(40)


def throttled():
    """A rank comes to a control group that may use a tenth of a CPU."""
    if slow and rank == 1 and not started:
        started.append(LIMITED.write_text(str(os.getpid())))
    burn(8)
    work(30)


def by_turns():
    work(40)
    late(25, turns % size)


def by_chance():
    work(30 + 30 * torch.rand(1).item())


def long_tail():
    """Sequences of any length: most are short, and some take ten times as long."""
    work(20 / (1 - 0.9 * torch.rand(1).item()))


def all_alike():
    work(40)
    late(25, *range(size))


def evaluates():
    work(40)
    if slow and turns % 25 == 24:
        work(1000)
        dist.barrier()


def compiles_once():
    work(40)
    if slow and rank == 0 and not compiled:
        compiled.append(turns)
        work(6000)


class Samples(IterableDataset):
    """Of a disk that becomes slow for one rank, when the worker has read some."""

    def __iter__(self):
        began_s = time.monotonic()
        while True:
            work(90 if rank == 1 and time.monotonic() - began_s > HEALTHY_S else 20)
            yield torch.randn(64)


def workers():
    samples = iter(DataLoader(Samples(), batch_size=1, num_workers=1))

    def before():
        next(samples)
        work(40)

    data_parallel(before)


def feeds():
    """A thread reads ahead."""
    queue = Queue(2)

    def feed():
        while True:
            work(20)
            late(70, 1)
            queue.put(None)

    def before():
        queue.get()
        work(40)

    Thread(target=feed, daemon=True).start()
    data_parallel(before)


def tensor_parallel():
    """The other rank of its tensor group is last in the data group, and not to blame."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    tensor = torch.ones(1000)
    while goes_on():
        for _ in range(4):
            work(10)
            late(6, 3)
            dist.all_reduce(tensor, group=pairs[rank // 2])
        dist.all_reduce(tensor, group=pairs[2 + rank % 2])
        tensor /= tensor.max()


def pipeline(ms=20):
    """A stage with more layers."""
    tensor = torch.ones(1000)
    while goes_on():
        for way in (1, -1):
            first, last = (0, size - 1)[::way]
            for _ in range(4):
                if rank != first:
                    dist.recv(tensor, rank - way)
                work(10)
                late(ms, 2)
                if rank != last:
                    dist.send(tensor, rank + way)
        dist.all_reduce(tensor)
        tensor /= tensor.max()


def even_stages():
    """The others wait for each of them in any turn."""
    pipeline(0)


def local_sgd():
    tensor = torch.ones(1000)
    while goes_on():
        for _ in range(4):
            work(12)
            late(8, 1)
        dist.all_reduce(tensor)
        tensor /= tensor.max()


def hidden():
    """A rank that comes later, and computes less while the others' data are on their way."""
    tensor = torch.ones(1000)
    while goes_on():
        late(15, 2)
        waiting = dist.all_reduce(tensor, async_op=True)
        work(35 if slow and rank == 2 else 50)
        waiting.wait()
        tensor /= tensor.max()


def hidden_by_a_queue():
    """The same while others wait for what a thread reads ahead."""
    tensor = torch.ones(1000)
    queue = Queue(1)

    def feed():
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + 0.06, time.monotonic())
            work(1e3 * max(due_s - time.monotonic(), 0.0))
            queue.put(None)

    Thread(target=feed, daemon=True).start()
    while goes_on():
        late(25, 2)
        waiting = dist.all_reduce(tensor, async_op=True)
        queue.get()
        waiting.wait()
        tensor /= tensor.max()


def logs_in_a_thread():
    """Metrics are averaged beside the training; one rank writes them somewhere slow."""
    side = dist.new_group()

    def log():
        metrics, wake = torch.ones(4), Event()
        while True:
            wake.wait(0.5)
            dist.all_reduce(metrics, group=side)
            late(300, 0)

    Thread(target=log, daemon=True).start()
    data_parallel(lambda: work(40))


def sharded():
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 (slow)

    model = network()
    for layer in model:
        fully_shard(layer)
    train(fully_shard(model), lambda: one_late(80))


def recovers():
    """In the last third it is well again."""
    work(40)
    if time.monotonic() - began_s < HEALTHY_S + SLOW_S * 2 / 3:
        late(40, 1)


SPIN = f"import os, time\nend = time.time() + {SLOW_S}\nwhile time.time() < end: pass"
CORES = os.sched_getaffinity(0)
LIMITED = Path(os.environ.get("LIMITED", ""), "cgroup.procs")
started = []
ballast = [[number] for number in range(400_000)] if KIND == "collects" and rank == 1 else []
compiled = []
of_its_own = (
    workers,
    feeds,
    tensor_parallel,
    pipeline,
    even_stages,
    local_sgd,
    hidden,
    hidden_by_a_queue,
    logs_in_a_thread,
    sharded,
)
if KIND in {function.__name__ for function in of_its_own}:
    globals()[KIND]()
else:
    data_parallel(globals()[KIND])
dist.destroy_process_group()
os._exit(0)  # whatever threads and workers are left
