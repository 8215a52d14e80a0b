"""What a rank waits for that is in no collective, and what keeps that from coming."""

from __future__ import annotations

import ast
from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from snapshots import PAIR, SCRIPT, TORCH, W, blocked, job, only, op, rank, source

from hangwatch.diagnosis.facts.awaited import On, has_returned, same_thread
from hangwatch.diagnosis.facts.blocked import blocked as blocked_by
from hangwatch.diagnosis.source.program import Program
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import Certainty, Kind, What
from hangwatch.model.snapshot import Child, Frame, GroupProgress, Mark, ProcessState, ThreadStack

if TYPE_CHECKING:
    from hangwatch.diagnosis.facts.awaited import Link
    from hangwatch.diagnosis.facts.blocked import Blocked
    from hangwatch.model.snapshot import RankSnapshot

PYTHON = "/usr/lib/python3.11"
FUTEX = "futex_do_wait"
START = (
    Frame(f"{PYTHON}/threading.py", 982, "Thread.run"),
    Frame(f"{PYTHON}/threading.py", 1045, "Thread._bootstrap_inner"),
)
GET = Frame(f"{PYTHON}/queue.py", 171, "Queue.get")
PUT = Frame(f"{PYTHON}/queue.py", 140, "Queue.put")
RUN = Frame(f"{PYTHON}/subprocess.py", 550, "run")
SHUTDOWN = Frame(f"{PYTHON}/threading.py", 1590, "_shutdown")
LOCKS = """\
    def save(self):
        with self.lock:
            self.pipe.send(self.rows)
    def step(self):
        with self.lock:
            self.rows.append(1)
    def load(self):
        self.lock.acquire()
        self.read()
        self.lock.release()
        self.read()
    """


def at(line: int, function: str = "main") -> Frame:
    return Frame(SCRIPT, line, function)


def thread(name: str, *frames: Frame, tid: int = 7) -> ThreadStack:
    return ThreadStack(name, tid, active=False, owns_gil=False, frames=frames)


def rank_at(
    *frames: Frame,
    number: int = 1,
    others: tuple[ThreadStack, ...] = (),
    children: tuple[Child, ...] = (),
    wchan: str = FUTEX,
) -> RankSnapshot:
    """A rank whose main thread sleeps at some frames, innermost first."""
    return rank(
        number,
        W,
        op(W, 8, thread=1000 + number),
        threads=(thread("MainThread", *frames, tid=1000 + number), *others),
        children=children,
        process=ProcessState(alive=True, state="S", wchan=wchan),
    )


def child(pid: int, command: str, wchan: str = "", *frames: Frame) -> Child:
    threads = (thread("MainThread", *frames, tid=pid),) if frames else ()
    return Child(pid, command, ProcessState(alive=True, state="S", wchan=wchan), threads)


def look(one: RankSnapshot, *peers: RankSnapshot, text: str = "") -> Blocked:
    found = seen(one, *peers, text=text)
    assert found is not None
    return found


def linked(one: RankSnapshot, *peers: RankSnapshot, text: str = "") -> Link:
    link = look(one, *peers, text=text).link
    assert link is not None
    return link


def seen(one: RankSnapshot, *peers: RankSnapshot, text: str = "") -> Blocked | None:
    text = dedent(text)
    return blocked_by(one, peers, {SCRIPT: text}, Program({SCRIPT: ast.parse(text)}))


def line(site: Site | None) -> int | None:
    return site.line if site else None


def test_who_holds_a_lock_is_found_by_the_block_that_it_is_in() -> None:
    writer = thread("writer", at(3, "save"), *START)
    found = look(rank_at(at(5, "step"), others=(writer,)), text=LOCKS)
    link = linked(rank_at(at(5, "step"), others=(writer,)), text=LOCKS)
    assert (found.on, found.what, link.name) == (On.LOCK, "the lock `self.lock`", "thread writer")
    assert (line(link.holds), line(link.site)) == (2, 3)


@pytest.mark.parametrize(("at_line", "holds"), [(9, 8), (11, None), (2, None)])
def test_a_lock_that_was_given_back_or_not_yet_taken_is_not_held(
    at_line: int, holds: int | None
) -> None:
    other = thread("loader", at(at_line, "load"), *START)
    link = look(rank_at(at(5, "step"), others=(other,)), text=LOCKS).link
    assert line(link.holds if link else None) == holds


def test_two_threads_that_wait_for_each_others_lock_are_told_as_such() -> None:
    text = """\
    def save():
        with file_lock:
            with model_lock:
                pass
    def evaluate():
        with model_lock:
            with file_lock:
                pass
    """
    saver = thread("saver", at(3, "save"), *START)
    link = linked(rank_at(at(7, "evaluate"), others=(saver,)), text=text)
    assert (line(link.holds), line(link.site), line(link.crossed)) == (2, 3, 6)


def test_a_thread_that_needs_a_lock_which_the_waiting_one_has_taken_is_told_as_such() -> None:
    text = """\
    def snapshot(self):
        with self.lock:
            self.jobs.put(state())
    def writer(self):
        with self.lock:
            self.written += 1
    """
    beat, writer = thread("beat", at(9, "beat"), *START), thread("writer", at(5, "writer"), *START)
    stuck = rank_at(PUT, at(3, "snapshot"), others=(beat, writer))
    link = linked(stuck, text=text)
    assert (link.name, line(link.site), line(link.crossed)) == ("thread writer", 5, 2)
    before = rank_at(PUT, at(1, "snapshot"), others=(beat, writer))
    assert look(before, text=text).link is None
    waiting = [rank(number, W, blocked(W, 9)) for number in (0, 2, 3)]
    verdict = only(job(*waiting, replace(stuck, rank=1), sources={SCRIPT: dedent(text)}))
    assert verdict.cause is not None
    assert (verdict.cause.what, line(verdict.cause.site)) == (What.STUCK_LINE, 2)
    assert verdict.advice[0].startswith("Release the lock taken at train.py:2 before")


def test_a_job_of_a_pool_that_has_ended_is_no_thread_that_has() -> None:
    pool = Frame(f"{PYTHON}/concurrent/futures/thread.py", 58, "_WorkItem.run")
    idle = Frame(f"{PYTHON}/concurrent/futures/thread.py", 81, "_worker")
    peers = [
        rank_at(at(20), number=n, others=(thread("prefetch_0", PUT, at(11, "fill"), pool),))
        for n in (0, 2)
    ]
    stuck = rank_at(GET, at(14), others=(thread("prefetch_0", idle),))
    link = linked(stuck, *peers)
    assert (link.name, link.had_by, link.idle) == ("thread prefetch_0", (0, 2), True)
    gone = linked(rank_at(GET, at(14)), *peers)
    assert (gone.had_by, gone.idle) == ((0, 2), False)
    waiting = [
        replace(one, ops=(*one.ops, blocked(W, 9, age=20.0)), groups=rank(0, W, op(W, 9)).groups)
        for one in peers
    ]
    verdict = only(job(*waiting, rank(3, W, blocked(W, 9)), stuck))
    assert verdict.culprits == (1,)
    assert verdict.cause is not None
    assert "that of rank 1 is idle: its job has ended." in verdict.cause.why
    assert verdict.advice[0].startswith(
        "Find out what ended the job of thread prefetch_0 on rank 1"
    )


def test_of_two_that_keep_a_lock_for_calls_of_both_none_left_the_common_program() -> None:
    text = """\
    def update(self):
        with self.lock:
            dist.all_reduce(shift)
    def snapshot(self):
        with self.lock:
            dist.all_gather_object(sizes, size, group=self.group)
    """
    own = GroupKey((0, 1), "snapshots")
    holds = thread("snapshot", Frame(f"{TORCH}/distributed_c10d.py", 9, "all_gather"), at(6), tid=7)
    stuck = replace(
        rank_at(at(2, "update"), number=0, others=(holds,)),
        ops=(op(PAIR, 8, thread=1000), blocked(own, 1, "all_gather_object", line=6, thread=7)),
        groups=(GroupProgress(PAIR, "0", 8, 8), GroupProgress(own, "1", 1, 0)),
    )
    waits = rank(1, PAIR, op(PAIR, 8), blocked(PAIR, 9, line=3), enqueued=9)
    verdict = only(job(stuck, waits, sources={SCRIPT: dedent(text)}))
    assert (verdict.culprits, verdict.certainty) == ((0, 1), Certainty.POSSIBLE)
    assert "Thread snapshot, which holds it, waits in all_gather_object #1" in verdict.explanation
    assert verdict.cause is not None
    assert line(verdict.cause.site) == 6
    assert verdict.advice[0].startswith("Do not let thread snapshot wait for anything")


@pytest.mark.parametrize(
    ("given", "told"), [("threading.Lock()", True), ("Semaphore(2)", True), ("open(path)", False)]
)
def test_a_lock_is_known_by_what_its_name_is_given(given: str, *, told: bool) -> None:
    text = f"gate = {given}\ndef step():\n    with gate:\n        pass\n"
    found = seen(rank_at(at(3, "step"), wchan=FUTEX), text=text)
    assert (found is not None and found.what == "the lock `gate`") is told


def test_a_with_statement_of_something_else_is_no_lock() -> None:
    assert seen(rank_at(at(1), wchan=""), text="with torch.no_grad():\n    x()\n") is None
    asleep = rank_at(at(1), wchan="hrtimer_nanosleep")
    assert seen(asleep, text="with lock:\n    x()\n") is None


def test_a_thread_that_the_peers_have_and_this_rank_has_not_is_missing() -> None:
    filler = thread("prefetch", at(11, "fill"), *START)
    peers = [rank_at(at(20), number=number, others=(filler,)) for number in (0, 2)]
    waiting = rank_at(GET, at(14, "batches"))
    link = linked(waiting, *peers)
    assert (link.name, link.had_by, line(link.site)) == ("thread prefetch", (0, 2), 11)
    assert look(waiting, *peers).call == "queue.get"


@pytest.mark.parametrize(
    ("file", "name", "told"),
    [
        (SCRIPT, "fill", True),  # it ran code of the file in which the rank waits
        ("/home/u/health.py", "health", False),
        ("/home/u/reader.py", "Thread-4 (fill)", True),  # the peers still have it
        (SCRIPT, "restarted", False),
    ],
)
def test_the_exception_that_ended_a_thread_is_told_where_the_rank_waits_for_it(
    file: str, name: str, *, told: bool
) -> None:
    mark = Mark("thread_died", f"{name}: KeyError: 'x'", 1, 30.0, Site(file, 11, "fill"))
    filler = thread("Thread-2 (fill)", Frame("/home/u/reader.py", 9, "fill"), *START)
    peers = [rank_at(at(20), number=number, others=(filler,)) for number in (0, 2)]
    again = (thread("restarted", at(40, "fill"), *START),) if name == "restarted" else ()
    waiting = replace(rank_at(GET, at(14), others=again), marks=(mark,))
    link = look(waiting, *peers).link
    assert (link is not None and link.ended_by == "KeyError: 'x'") is told


def test_a_thread_that_waits_where_those_of_the_peers_do_explains_nothing() -> None:
    health = thread("health", at(30, "beat"), *START)
    peer = rank_at(at(20), number=0, others=(health,))
    assert look(rank_at(GET, at(14), others=(health,)), peer).link is None
    stuck = thread("health", at(31, "beat"), *START)
    assert linked(rank_at(GET, at(14), others=(stuck,)), peer).name == "thread health"


def test_the_only_child_is_what_a_call_of_subprocess_waits_for() -> None:
    tracker = child(50, "python -c from multiprocessing.resource_tracker import main")
    tar = child(51, "tar xf shard.tar", "locks_lock_inode_wait")
    waiting = rank_at(RUN, at(9), children=(tracker, tar))
    link = linked(waiting)
    assert (look(waiting).on, link.name, link.waits_for) == (On.CHILD, "process 51", "a file lock")
    several = rank_at(RUN, at(9), children=(tar, child(52, "tar xf other.tar")))
    assert look(several).link is None


def test_a_process_that_all_peers_have_is_missing() -> None:
    get = Frame(f"{PYTHON}/multiprocessing/queues.py", 103, "Queue.get")
    worker = "python -c from multiprocessing.spawn import spawn_main"
    peers = [rank_at(at(20), number=n, children=(child(60 + n, worker),)) for n in (0, 2)]
    link = linked(rank_at(get, at(14)), *peers)
    assert (link.command, link.had_by) == (worker, (0, 2))


@pytest.mark.parametrize(
    ("frames", "wchan", "on"),
    [
        ((Frame(f"{PYTHON}/socket.py", 706, "SocketIO.readinto"),), "wait_woken", On.ANSWER),
        ((Frame("/site-packages/filelock/_api.py", 300, "acquire"),), "", On.FILE_LOCK),
        ((), "locks_lock_inode_wait", On.FILE_LOCK),
        ((), "anon_pipe_write", On.PIPE),
        ((), "wait_for_partner", On.PIPE),
        ((), "rpc_wait_bit_killable", On.FILE),
        ((), "do_wait", On.CHILD),
        ((), "sk_wait_data", On.ANSWER),
    ],
)
def test_libraries_and_the_kernel_tell_what_it_waits_for(
    frames: tuple[Frame, ...], wchan: str, on: On
) -> None:
    assert look(rank_at(*frames, at(1), wchan=wchan), text="call()\n").on is on


def test_a_loop_that_sleeps_until_something_comes_is_told() -> None:
    asleep = rank_at(at(2), wchan="hrtimer_nanosleep")
    assert line(look(asleep, text="while not ready():\n    time.sleep(1)\n").until) == 1
    assert look(asleep, text="while True:\n    time.sleep(1)\n").until is None


def test_who_uses_the_processor_waits_for_nothing() -> None:
    busy = ThreadStack("MainThread", 1001, active=True, owns_gil=True, frames=(GET, at(14)))
    assert seen(rank(1, threads=(busy,))) is None


def test_a_program_that_is_over_is_told_with_the_thread_that_keeps_it() -> None:
    beat = thread("heartbeat", at(4, "heartbeat"), *START)
    others = [
        rank(
            number,
            W,
            blocked(W, 9, line=15),
            threads=(thread("MainThread", at(15), tid=1000 + number), beat),
        )
        for number in (0, 1, 3)
    ]
    made = op(W, 8, thread=1002)
    over = rank(2, W, made, threads=(thread("MainThread", SHUTDOWN, tid=1002), beat))
    assert has_returned(over)
    verdict = only(job(*others, over))
    assert (verdict.kind, verdict.culprits) == (Kind.FINISHED_EARLY, (2,))
    assert verdict.certainty is Certainty.LIKELY  # the thread may make calls yet
    assert "Python waits for thread heartbeat (train.py:4)" in verdict.headline


def test_the_cause_is_where_the_holder_of_the_lock_is() -> None:
    waiting = [rank(number, W, blocked(W, 9)) for number in (0, 2, 3)]
    writer = thread("writer", at(3, "save"), *START)
    stuck = rank(
        1,
        W,
        enqueued=8,
        threads=(thread("MainThread", at(5, "step"), tid=1001), writer),
        process=ProcessState(alive=True, state="S", wchan=FUTEX),
    )
    verdict = only(job(*waiting, stuck, sources={SCRIPT: dedent(LOCKS)}))
    assert verdict.cause is not None
    assert (verdict.cause.what, line(verdict.cause.site)) == (What.STUCK_LINE, 3)
    assert "thread writer" in verdict.advice[0]
    assert verdict.cause.evidence == (verdict.cause.why,)
    assert verdict.cause.why.startswith("Thread writer has held it since `with self.lock`")


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (14, "they are waiting in queue.get (main, train.py:14);"),
        (30, "rank 1 is waiting in queue.get (main, train.py:14), rank 2 is waiting in queue.get"),
    ],
)
def test_what_one_rank_waits_for_is_not_said_of_another_line(second: int, told: str) -> None:
    waiting = [rank(number, W, blocked(W, 9)) for number in (0, 3)]
    stuck = [
        replace(rank_at(GET, at(line), number=number), ops=(), groups=waiting[0].groups)
        for number, line in ((1, 14), (2, second))
    ]
    behind = [replace(one, groups=(replace(one.groups[0], enqueued=8),)) for one in stuck]
    verdict = only(job(*waiting, *behind, **source("while True:\n    step()\n")))
    assert verdict.culprits == (1, 2)
    assert told in verdict.headline


def test_a_thread_is_found_again_on_another_rank_by_what_it_runs() -> None:
    def watching(number: int, line: int) -> RankSnapshot:
        watcher = thread(
            f"Thread-{number}", at(line, "watch"), at(3, "run"), *START, tid=50 + number
        )
        return rank_at(at(30), number=number, others=(watcher,))

    found = same_thread(watching(1, 12), 51, watching(0, 10))
    assert found is not None
    assert (found.tid, found.frames[0].line) == (50, 10)
    assert same_thread(watching(1, 12), 1001, watching(0, 10)) is None  # it is the one that trains
    assert same_thread(watching(1, 12), 51, rank_at(at(30), number=0)) is None


def test_of_several_workers_the_one_that_is_in_the_user_s_code_is_told() -> None:
    forked = (Frame(f"{PYTHON}/multiprocessing/process.py", 108, "run"), at(33, "__init__"))
    idle = child(20, "python train.py", "pipe_read", GET, *forked)
    busy = child(21, "python train.py", "", at(16, "featurize"), *forked)
    pool = Frame(f"{PYTHON}/multiprocessing/pool.py", 367, "Pool.map")
    found = look(rank_at(pool, at(37, "chunks"), children=(idle, busy)))
    assert (found.on, found.call) == (On.CHILD, "multiprocessing.pool.map")
    assert found.link is not None
    assert (found.link.name, found.link.site and found.link.site.line) == ("process 21", 16)


RETRIES = """\
def acquire(path):
    while True:
        try:
            return os.open(path, os.O_EXCL)
        except FileExistsError:
            time.sleep(0.1)
def draw(counts):
    while True:
        row = choice(rows)
        if counts[row] > 0:
            return row
def train():
    while step < 100:
        row = choice(rows)
        dist.all_reduce(row)
def wait():
    while time.monotonic() < end:
        time.sleep(1)
"""


def of_text(line: int, text: str, *, active: bool = False, handling: str = "") -> Blocked | None:
    """What a rank waits for whose main thread is at a line."""
    found = rank_at(at(line))
    threads = tuple(replace(one, active=active) for one in found.threads or ())
    program = Program({SCRIPT: ast.parse(text)})
    seen = replace(found, threads=threads, handling=handling)
    return blocked_by(seen, (), {SCRIPT: text}, program)


def test_what_a_handler_goes_back_to_is_tried_again() -> None:
    found = of_text(6, RETRIES, handling="FileExistsError")
    assert found is not None
    assert (found.on, found.what) == (On.RETRY, "FileExistsError")
    assert found.until is not None
    assert found.until.line == 4
    ends = RETRIES.replace("time.sleep(0.1)", "time.sleep(0.1); raise", 1)
    given_up = of_text(6, ends, handling="FileExistsError")
    assert given_up is not None
    assert given_up.on is On.SLEEP


def test_a_rank_that_tries_again_is_not_said_to_handle_an_exception() -> None:
    waiting = [rank(number, W, blocked(W, 9)) for number in (0, 2, 3)]
    tries = replace(rank_at(at(6)), handling="FileExistsError")
    verdict = only(job(*waiting, tries, sources={SCRIPT: RETRIES}))
    assert "it is retrying after a FileExistsError" in verdict.headline
    assert verdict.cause is not None
    assert verdict.cause.site is not None
    assert verdict.cause.site.line == 4
    assert verdict.advice[0].startswith(
        "Find out why `return os.open(path, os.O_EXCL)` fails each time"
    )


def test_a_loop_without_any_call_for_others_is_told_of_who_is_at_work_in_it() -> None:
    found = of_text(9, RETRIES, active=True)
    assert found is not None
    assert found.until is not None
    assert (found.on, found.until.line) == (On.LOOP, 8)
    assert of_text(14, RETRIES, active=True) is None  # it communicates
    library = Frame("/usr/lib/python3/site-packages/sampler/core.py", 3, "choice")
    at_work = replace(thread("MainThread", library, at(9), tid=1001), active=True)
    seen = replace(rank_at(at(9)), threads=(at_work,))
    assert blocked_by(seen, (), {SCRIPT: RETRIES}, Program({SCRIPT: ast.parse(RETRIES)})) is None


def test_a_loop_until_some_time_does_not_wait_for_anything_else() -> None:
    found = of_text(18, RETRIES)
    assert found is not None
    assert (found.on, found.until) == (On.SLEEP, None)


def test_a_child_that_fills_a_pipe_is_to_be_read() -> None:
    child = Child(40, "python -c print", ProcessState(alive=True, wchan="pipe_write"))
    text = "def score():\n    if p.wait() != 0:\n        raise RuntimeError\n"
    stuck = rank_at(Frame(f"{PYTHON}/subprocess.py", 1264, "wait"), at(2), children=(child,))
    waiting = [rank(number, W, blocked(W, 9)) for number in (0, 2, 3)]
    verdict = only(job(*waiting, stuck, sources={SCRIPT: text}))
    assert verdict.advice[0].startswith("Read the output of process 40 on rank 1 while it runs")
