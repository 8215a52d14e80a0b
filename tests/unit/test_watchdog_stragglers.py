"""Stragglers among the ranks of a node, from the moments on their pages."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from made_hello import hello
from made_pages import WORLD, group, page

from hangwatch.efficiency.nodes import SlowNodes
from hangwatch.efficiency.straggler_watch import StragglerWatch
from hangwatch.errors import EvidenceError, PageError
from hangwatch.evidence.pages.finder import OpenPage, Seen
from hangwatch.evidence.pages.look import Look, Waiting
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Reason
from hangwatch.model.page import PageMoment, RankPage
from hangwatch.model.profile import Profile, StackSamples
from hangwatch.model.report import Why
from hangwatch.report.files import load
from hangwatch.report.straggler_schema import STRAGGLER_SCHEMA
from hangwatch.run.handshake import Hello
from hangwatch.settings.config import Config
from hangwatch.watchdog import timing
from hangwatch.watchdog.announcer import Announcer
from hangwatch.watchdog.incident.reporter import Reporter
from hangwatch.watchdog.moments import Moments, rank_moments
from hangwatch.watchdog.profiles import Explained
from hangwatch.watchdog.straggler_reporter import StragglerReporter
from hangwatch.watchdog.stragglers import StragglerLook

if TYPE_CHECKING:
    from hangwatch.console import News
    from hangwatch.report.straggler_schema import StragglerReport
    from hangwatch.watchdog.peers.comparison import Talk
    from hangwatch.watchdog.profiles import Profiled, Profiler

pytest_plugins = ["said_news"]

S = 1_000_000_000
WINDOW_S = 10
FUTEX = 202
RUNNING = -2
LINE = Site("/home/ada/train.py", 12, "main")
OTHER_LINE = Site("/home/ada/train.py", 30, "main")


def moment(number: int, issued: int = 3, **changes: Any) -> PageMoment:
    """A rank that works; ten a second."""
    values: dict[str, Any] = {
        "number": number,
        "at_ns": number * S // 10,
        "thread": 7,
        "call": RUNNING,
        "cpu_ns": number * 1_000_000,
        "delay_ns": 0,
        "blocked_slot": -1,
        "blocked_peer": -1,
        "groups": [(0, issued, issued)],
    }
    return PageMoment(**{**values, **changes})


def waits(number: int, issued: int = 4, **changes: Any) -> PageMoment:
    """A rank that waits in its last call."""
    return moment(number, call=FUTEX, groups=[(0, issued, issued - 1)], **changes)


@dataclass
class MadePage:
    """A page with moments of the test's."""

    noted: list[PageMoment] = field(default_factory=list)
    broken: bool = False

    def moments(self, after: int) -> list[PageMoment]:
        if self.broken:
            raise PageError("gone")
        return [one for one in self.noted if one.number > after]


@dataclass
class Job:
    """Ranks of one node."""

    pages: list[MadePage] = field(default_factory=lambda: [MadePage(), MadePage()])
    changes: dict[str, Any] = field(default_factory=dict)

    def look(self, ended: int = -1) -> Look:
        """What the monitor sees of them."""
        at_ns = max((one.at_ns for made in self.pages for one in made.noted), default=0)
        seen = {
            rank: Seen(cast("OpenPage", made), self.light(rank, at_ns))
            for rank, made in enumerate(self.pages)
        }
        waiting: dict[int, Waiting | None] = {rank: None for rank in seen if rank != ended}
        return Look(at_ns, seen, waiting, moved=True)

    def light(self, rank: int, at_ns: int) -> RankPage:
        in_use = replace(group(), changed_ns=at_ns)
        return page(rank, **{"groups": (in_use,), "pid": 100 + rank, **self.changes})

    def note(self, *moments: PageMoment) -> None:
        """Each rank in turn notes one."""
        for made, one in zip(self.pages, moments, strict=True):
            made.noted.append(one)


@dataclass
class MadeProfiler:
    """Finds one reason after the other; without any, as if there were no py-spy."""

    found: list[Why] = field(default_factory=list)
    asked: list[tuple[float, float, float]] = field(default_factory=list)
    """The cost, and the shares of time for which the straggler and the other one waited."""
    taken: int = 0

    async def take_both(self, slow: Profiled, like: Profiled, seconds: int) -> list[Profile]:
        self.taken += 1
        if not self.found:
            raise EvidenceError("py-spy was not found")
        assert (slow.page.identity.rank, like.page.identity.rank) == (1, 0)
        return [await self.take(one, seconds) for one in (slow, like)]

    async def explain(self, _: RankPage, slow: Profile, like: Profile, cost: float) -> Explained:
        self.asked.append((cost, slow.waits, like.waits))
        return Explained(self.found.pop(0))

    async def take(self, one: Profiled, _: int) -> Profile:
        stacks = [StackSamples(7, 7, "MainThread", (), count) for count in range(1, 151)]
        who = one.page.identity
        assert one.thread == 7
        return Profile(who.rank, who.pid, one.thread, tuple(stacks))

    async def compare(self, page: RankPage, slow: Profile, like: Profile, cost: float) -> Explained:
        assert page.identity.rank == slow.rank
        assert cost == 0.4
        return Explained(Why(Reason.USER_CODE, OTHER_LINE, 0.5, like.rank, 0.0))


@dataclass
class MadePeers:
    """The other nodes, which do not answer."""

    asked: int = 0

    async def __call__(self) -> str:
        self.asked += 1
        return "the other nodes cannot be asked: no store"


@pytest.fixture
def look(tmp_path: Path, news: News, said: Path) -> StragglerLook:
    made = hello(tmp_path, Config(straggler_window_s=WINDOW_S))
    fd = os.open(said, os.O_WRONLY | os.O_APPEND)
    reporter = StragglerReporter(Reporter(tmp_path / "reports", news, "", fd))
    (tmp_path / "reports").mkdir()
    return StragglerLook(
        hello=made,
        news=news,
        announcer=Announcer(
            hello=made,
            news=news,
            reporter=reporter,
            node="node-a",
            profiler=cast("Profiler", MadeProfiler()),
            watch=StragglerWatch(WINDOW_S),
        ),
        compare=MadePeers(),
    )


@dataclass
class MadeTalk:
    """The other nodes, of which one says something."""

    message: Profile | Why | None = None
    said: list[tuple[str, Profile | Why]] = field(default_factory=list)

    async def say(self, what: str, message: Profile | Why) -> None:
        self.said.append((what, message))

    async def hear(self, what: str, kind: type, *_: float) -> Profile | Why | None:
        assert (what, kind) in (("like", Profile), ("why", Why))
        return self.message if isinstance(self.message, kind) else None


def peers_of(look: StragglerLook) -> MadePeers:
    return cast("MadePeers", look.compare)


def hear(look: StragglerLook, found: SlowNodes, message: Profile | Why | None = None) -> MadeTalk:
    """Hear what the nodes have found, and wait until it is told."""
    talk = MadeTalk(message)

    async def heard() -> None:
        look.heard(found, cast("Talk", talk))
        await look.settle()

    asyncio.run(heard())
    return talk


def look_for(
    look: StragglerLook, job: Job, seconds: int, monkeypatch: pytest.MonkeyPatch, since_s: int = 0
) -> int:
    """Look at rank 1 being slow, once a second, and let that be the time."""
    for second in range(since_s, since_s + seconds):
        slow_second_rank(job, range(10 * second + 1, 10 * second + 11))
        monkeypatch.setattr(Hello, "elapsed_s", lambda _, at_s=second + 1.0: at_s)
        look_at(look, job)
    return since_s + seconds


def slow_second_rank(job: Job, numbers: range) -> None:
    """Rank 1 is waited for at every other moment."""
    for number in numbers:
        if number % 2:
            job.note(moment(number, number), moment(number, number))
        else:
            job.note(waits(number, number + 1), moment(number, number))


class TestMoments:
    def test_those_that_all_ranks_have_noted_are_put_together(self) -> None:
        job, moments = Job(), Moments()
        job.pages[0].noted = [moment(1), moment(2), moment(4, 5)]
        job.pages[1].noted = [moment(2), moment(3)]
        assert moments.read(job.look()) == [{0: moment(2), 1: moment(2)}]
        job.pages[1].noted.append(moment(4))
        assert moments.read(job.look()) == [{0: moment(4, 5), 1: moment(4)}]
        assert moments.read(job.look()) == []

    def test_a_rank_that_gets_no_cpu_is_what_it_is_before_and_after(self) -> None:
        job, moments = Job(), Moments()
        job.pages[0].noted = [waits(number) for number in range(1, 9)]
        job.pages[1].noted = [moment(1), moment(3), moment(5, 4), waits(7, 4)]
        known = moments.read(job.look())
        assert [ranks[0].number for ranks in known] == [1, 2, 3, 5, 7]
        assert known[1][1] == moment(3)._replace(number=2)
        job.pages[1].noted.append(waits(9, 4))
        job.pages[0].noted.append(moment(9, 4))
        assert [ranks[1].groups for ranks in moments.read(job.look())] == [waits(8).groups] * 2

    def test_a_rank_that_has_ended_is_not_waited_for(self) -> None:
        job, moments = Job(), Moments()
        job.pages[0].noted = [moment(1)]
        assert moments.read(job.look(ended=1)) == [{0: moment(1)}]

    def test_a_page_that_cannot_be_read_costs_its_moments(self) -> None:
        job, moments = Job(), Moments()
        job.note(moment(1), moment(1))
        job.pages[1].broken = True
        assert moments.read(job.look()) == []
        job.pages[1].broken = False
        assert len(moments.read(job.look())) == 1

    def test_one_that_a_rank_has_missed_is_forgotten_in_the_end(self) -> None:
        job, moments = Job(), Moments()
        job.pages[0].noted = [moment(1)]
        assert moments.read(job.look()) == []
        job.note(moment(200), moment(200))
        assert len(moments.read(job.look())) == 1
        job.pages[1].noted = [moment(1)]
        assert moments.read(job.look()) == []


def test_what_a_rank_does_at_a_moment() -> None:
    noted = {
        0: waits(1),
        1: moment(1),
        2: moment(1, call=0, blocked_slot=0, blocked_peer=1, groups=[]),
        3: moment(1, call=0),
    }
    pages = {rank: page(rank) for rank in noted}
    ranks = rank_moments(noted, pages, {WORLD: 5})
    assert ranks[0].issued == {5: 4}
    assert (ranks[0].idle, ranks[0].unfinished) == (True, True)
    assert (ranks[1].idle, ranks[1].unfinished) == (False, False)
    assert (ranks[2].idle, ranks[2].unfinished, ranks[2].peer) == (True, True, 1)
    assert (ranks[3].idle, ranks[3].peer) == (False, -1)  # it reads a file


def look_at(look: StragglerLook, job: Job) -> None:
    """Look once, and wait until what was found is told."""

    async def looked() -> None:
        look.look(job.look(), stuck=False)
        await asyncio.sleep(0.001)  # for a question to the other nodes
        await look.settle()

    asyncio.run(looked())


def read_straggler(where: Path) -> StragglerReport:
    """The stored report of a straggler."""
    _, content = load(where)
    assert content["schema"] == STRAGGLER_SCHEMA
    return content


def watch(look: StragglerLook, job: Job, seconds: int, since_s: int = 0) -> None:
    """Look at rank 1 being slow, once a second."""
    for second in range(since_s, since_s + seconds):
        slow_second_rank(job, range(10 * second + 1, 10 * second + 11))
        look_at(look, job)


def test_a_straggler_is_told_and_stands_in_the_account(look: StragglerLook, said: Path) -> None:
    watch(look, Job(), 40)
    text = " ".join(said.read_text().split())
    assert text.count("STRAGGLER") == 1
    assert "STRAGGLER (50 % of the time) The other ranks wait for rank 1 again and again" in text
    assert "rank 1 is process 101 on node-a" in text
    account = look.conclude()
    (straggler,) = account.found
    assert straggler.ranks == (1,)
    assert straggler.fraction == pytest.approx(0.5, abs=0.02)
    assert account.measured_s == pytest.approx(40, abs=1)
    assert account.unknown == ""


def test_it_is_told_with_its_reason(look: StragglerLook, said: Path) -> None:
    profiler = cast("MadeProfiler", look.announcer.profiler)
    profiler.found = [Why(Reason.USER_CODE, LINE, 0.75, 0, 0.0)]
    watch(look, Job(), 40)
    text = " ".join(said.read_text().split())
    assert "cause Rank 1 is at train.py:12 for 75 % of its time, rank 0 for 0 %." in text
    assert "code /home/ada/train.py:12 in main" in text
    assert profiler.asked == [pytest.approx((0.5, 0.0, 0.5), abs=0.05)]
    (straggler,) = look.conclude().found
    assert (straggler.why.reason, straggler.why.site) == (Reason.USER_CODE, LINE)


def test_one_that_hides_behind_what_others_do_is_not_told(look: StragglerLook, said: Path) -> None:
    profiler = cast("MadeProfiler", look.announcer.profiler)
    profiler.found = [Why(like=0, hidden=True)]
    watch(look, Job(), 40)
    assert said.read_text() == ""
    assert look.conclude().found == ()


def test_its_report_is_written_and_says_in_the_end_what_it_has_cost(
    look: StragglerLook, said: Path, tmp_path: Path
) -> None:
    job = Job()
    watch(look, job, 20)
    where = tmp_path / "reports" / "straggler-001"
    assert f"report {where}" in " ".join(said.read_text().split())
    at_first = read_straggler(where)
    assert [one["works"][-20:] for one in at_first["waits"]["ranks"]] == ["10" * 10, "1" * 20]
    assert at_first["compared"]["missing"] == "py-spy was not found"
    watch(look, job, 40, 20)
    account = look.conclude()
    look.announcer.reporter.conclude(account)
    asyncio.run(look.announcer.reporter.ended(account.found[-1]))
    at_last = read_straggler(where)
    assert at_last["waits"] == at_first["waits"]
    assert at_first["straggler"]["until_s"] < 20
    assert at_last["straggler"]["until_s"] > 55
    assert "hangwatch: stragglers have cost this run" in said.read_text()
    assert [path.name for path in where.parent.iterdir()] == ["straggler-001"]


def test_each_straggler_has_a_report_and_each_its_end(look: StragglerLook, tmp_path: Path) -> None:
    job = Job()
    watch(look, job, 20)
    for second in range(20, 50):
        for number in range(10 * second + 1, 10 * second + 11):
            busy, waiting = moment(number, number), waits(number, number + 1)
            job.note(busy, waiting if number % 2 else busy)
        look_at(look, job)
    first, second_one = (
        read_straggler(tmp_path / "reports" / f"straggler-00{number}")["straggler"]
        for number in (1, 2)
    )
    assert (first["ranks"], second_one["ranks"]) == ([1], [0])
    assert first["until_s"] == pytest.approx(20, abs=3)
    assert [one.until_s for one in look.watch.told] == [pytest.approx(first["until_s"], abs=0.1)]


def test_a_report_that_cannot_be_written_costs_nothing_else(
    look: StragglerLook, said: Path
) -> None:
    look.announcer.reporter.reporter.report_dir = Path("/nowhere")
    watch(look, Job(), 40)
    text = " ".join(said.read_text().split())
    assert "report none could be written" in text
    assert "the report cannot be written to /nowhere" in text
    asyncio.run(look.announcer.reporter.ended(look.conclude().found[-1]))
    assert said.read_text().count("cannot be written to /nowhere") == 1


def test_one_that_is_seldom_late_is_told_why_once_it_is(
    look: StragglerLook, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "MOMENTS_KNOWN_S", 0.0)
    writes = Why(Reason.CHECKPOINT_IO, LINE, 1.0, 0, 0.0)
    over_too_soon = Why(Reason.USER_CODE, OTHER_LINE, 1.0, 0, 0.0)
    profiler = cast("MadeProfiler", look.announcer.profiler)
    profiler.found = [Why(like=0), over_too_soon, Why(like=0), writes]
    job = Job()
    watch(look, job, 20)
    text = " ".join(said.read_text().split())
    assert "STRAGGLER" in text
    assert "cause" not in text
    for first, seen_s in ((201, 30.0), (221, 24.0), (241, 25.5)):
        for number in range(first, first + 20):
            job.note(waits(number), moment(number))
        monkeypatch.setattr(Hello, "elapsed_s", lambda _, at_s=seen_s: at_s)
        look_at(look, job)
    text = " ".join(said.read_text().split())
    assert (
        "While the others wait, rank 1 is at train.py:12. It writes or reads files there." in text
    )
    assert "train.py:30" not in text
    assert profiler.asked[1:] == [(1.0, 0.0, 1.0)] * 3
    (straggler,) = look.conclude().found
    assert (straggler.why.reason, straggler.why.held) == (Reason.CHECKPOINT_IO, True)


def test_one_that_does_the_same_as_others_just_now_is_not_profiled(
    look: StragglerLook, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StragglerWatch, "is_seldom", True)
    watch(look, Job(), 16)
    assert said.read_text().count("STRAGGLER") == 1
    assert cast("MadeProfiler", look.announcer.profiler).asked == []


def test_without_profiles_it_is_told_without_a_reason(look: StragglerLook, said: Path) -> None:
    job = Job()
    watch(look, job, 20)
    for number in range(201, 221):
        job.note(waits(number), moment(number))
    look_at(look, job)
    text = " ".join(said.read_text().split())
    assert text.count("STRAGGLER") == 1
    assert "not seen the profiles of the ranks: py-spy was not found" in text
    assert cast("MadeProfiler", look.announcer.profiler).taken == 1


def test_nothing_is_told_of_a_job_that_is_stuck(look: StragglerLook, said: Path) -> None:
    job = Job()
    for second in range(40):
        slow_second_rank(job, range(10 * second + 1, 10 * second + 11))
        look.look(job.look(), stuck=True)
    assert said.read_text() == ""
    assert look.conclude().found == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"world_size": 1}, "the job has one rank"),
        (
            {"groups": (replace(group(backend="nccl"), slot=1, changed_ns=40 * S),)},
            "there are groups of nccl; only gloo's are counted",
        ),
        (
            {
                "groups": (
                    replace(group(), slot=1, changed_ns=40 * S),
                    replace(group(enqueued=0), slot=2),
                )
            },
            "some process groups have not been used yet: calls are counted once all have",
        ),
        (
            {"groups": (replace(group(), slot=1, changed_ns=40 * S),)},
            "c10d does not say how many calls it has issued (torch can from 2.8 on)",
        ),
    ],
)
def test_why_it_is_not_known(
    look: StragglerLook, said: Path, changes: dict[str, Any], why: str
) -> None:
    job = Job(changes=changes)
    for second in range(40):
        slow_second_rank(job, range(10 * second + 1, 10 * second + 11))
        look.look(job.look(), stuck=False)
    account = look.conclude()
    assert account.found == ()
    assert account.unknown == why
    assert said.read_text() == ""


def test_a_thread_that_never_runs_is_not_the_one_that_trains(look: StragglerLook) -> None:
    job = Job()
    for number in range(1, 400):
        job.note(moment(number, cpu_ns=5), moment(number, cpu_ns=5))
        if not number % 10:
            look.look(job.look(), stuck=False)
    assert "the threads that train are not known" in look.unknown


def test_a_run_that_is_too_short(look: StragglerLook) -> None:
    job = Job()
    slow_second_rank(job, range(1, 51))
    look.look(job.look(), stuck=False)
    assert "10 s are needed (--straggler-window)" in look.conclude().unknown


def test_a_run_that_is_too_short_to_be_sure(look: StragglerLook) -> None:
    watch(look, Job(), 13)
    account = look.conclude()
    assert account.found == ()
    assert "rank 1 may be slow, but the run was too short to be sure" in account.unknown


def test_a_short_run_without_one(look: StragglerLook) -> None:
    job = Job()
    for second in range(13):
        for number in range(10 * second + 1, 10 * second + 11):
            job.note(moment(number, number), moment(number, number))
        look_at(look, job)
    assert look.conclude().unknown == ""


def test_ranks_that_note_nothing(look: StragglerLook) -> None:
    look.look(Job().look(), stuck=False)
    assert "the native recorder does" in look.conclude().unknown


def test_it_can_be_turned_off(look: StragglerLook, tmp_path: Path) -> None:
    look.hello = hello(tmp_path, Config(stragglers=False))
    job = Job()
    slow_second_rank(job, range(1, 400))
    look.look(job.look(), stuck=False)
    assert look.conclude().unknown == "--no-stragglers was given"
    assert look.watch.measured_s == 0.0


def test_a_fault_of_ours_is_no_end_of_the_watch(look: StragglerLook, news: News) -> None:
    job = Job()
    job.note(moment(1), moment(1, groups=cast("Any", 5)))
    look.look(job.look(), stuck=False)
    assert "no search for stragglers" in "".join(news.lost)
    assert "the search has failed" in look.conclude().unknown


def test_ranks_that_were_restarted_begin_anew(look: StragglerLook) -> None:
    watch(look, Job(), 30)
    assert look.watch.export().current is not None
    look.restarted()
    assert look.watch.export().current is None
    assert [one.ranks for one in look.conclude().found] == [(1,)]


class TestSeveralNodes:
    """The ranks of this node are two of four."""

    @pytest.fixture
    def job(self) -> Job:
        return Job(changes={"world_size": 4})

    def test_the_others_are_asked_once_there_is_something_to_compare(
        self, look: StragglerLook, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timing, "SPREAD_S", 0.0)
        seen_s = look_for(look, job, 14, monkeypatch)
        assert peers_of(look).asked == 0
        look_for(look, job, 12, monkeypatch, seen_s)
        assert peers_of(look).asked == 2
        # It is said only if they cannot be asked again and again: the job may be at its end.
        assert look.conclude().unknown == "the other nodes cannot be asked: no store"

    def test_a_run_that_is_too_short(
        self, look: StragglerLook, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look_for(look, job, 12, monkeypatch)
        assert "16 s are needed (--straggler-window)" in look.conclude().unknown

    def test_what_it_tells(
        self, look: StragglerLook, job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert "the native recorder does" in look.tell().unknown
        look_for(look, job, 12, monkeypatch)
        told = look.tell()
        assert (told.host, told.ranks, told.part_s, told.unknown) == ("node-a", (0, 1), 0.5, "")
        # Rank 1 is awake all the time, rank 0 at every other moment.
        assert {ranks for part in told.parts for ranks in part[::2]} == {2, 3}
        look.hello = hello(tmp_path, Config(stragglers=False))
        assert look.tell().unknown == "--no-stragglers was given"

    def test_a_straggler_of_this_node_is_told_and_the_others_told_why(
        self, look: StragglerLook, job: Job, monkeypatch: pytest.MonkeyPatch, said: Path
    ) -> None:
        cast("MadeProfiler", look.announcer.profiler).found = [
            Why(Reason.USER_CODE, LINE, 0.75, 0, 0.0)
        ]
        look_for(look, job, 20, monkeypatch)
        talk = hear(look, SlowNodes((1,), 0.4, 0, "node-a", since_s=15.0, window_s=10.0))
        text = " ".join(said.read_text().split())
        assert "STRAGGLER (40 % of the time) The other ranks wait for rank 1" in text
        assert "cause Rank 1 is at train.py:12 for 75 % of its time, rank 0 for 0 %." in text
        assert [what for what, _ in talk.said] == ["why"]
        assert look.watch.current_ranks == (1,)
        hear(look, SlowNodes((1,), 0.3, 0, "node-a", since_s=15.0, window_s=10.0))
        hear(look, SlowNodes(suspected=True))
        assert said.read_text().count("STRAGGLER") == 1
        hear(look, SlowNodes())
        assert "the job no longer waits for rank 1, which has cost it" in said.read_text()
        (straggler,) = look.conclude().found
        assert straggler.fraction == pytest.approx(0.35)
        assert straggler.why.site == LINE

    def test_one_that_is_slow_as_a_whole_is_compared_with_another(
        self, look: StragglerLook, job: Job, monkeypatch: pytest.MonkeyPatch, said: Path
    ) -> None:
        look_for(look, job, 20, monkeypatch)
        found = SlowNodes((0, 1), 0.4, 3, "node-a", since_s=15.0, window_s=10.0)
        talk = hear(look, found, Profile(0, 9, 9, ()))
        text = " ".join(said.read_text().split())
        assert "cause Rank 0 is at train.py:30 for 50 % of its time, rank 3 for 0 %." in text
        assert "rank 1 is process 101 on node-a" in text
        assert isinstance(talk.said[0][1], Why)
        look.restarted()
        look_for(look, job, 20, monkeypatch)
        hear(look, found)
        text = " ".join(said.read_text().split())
        assert "profiles of the ranks: that of rank 3, on another node, has not come" in text

    def test_one_of_another_node_is_told_in_one_line(
        self, look: StragglerLook, job: Job, monkeypatch: pytest.MonkeyPatch, said: Path
    ) -> None:
        look_for(look, job, 20, monkeypatch)
        found = SlowNodes((2,), 0.4, 3, "node-b", since_s=15.0, window_s=10.0)
        talk = hear(look, found, Why(Reason.USER_CODE, LINE, 0.75, 3, 0.0))
        assert said.read_text() == (
            "hangwatch: STRAGGLER (40 % of the time) The other ranks wait for rank 2 again and "
            "again, and it for none of them. Rank 2 is at train.py:12 for 75 % of its time, rank 3 "
            "for 0 %. (reported by node node-b)\n"
        )
        assert talk.said == []
        (straggler,) = look.conclude().found
        assert straggler.why.site == LINE

    def test_a_rank_that_others_are_compared_with_is_profiled(
        self, look: StragglerLook, job: Job, monkeypatch: pytest.MonkeyPatch, said: Path
    ) -> None:
        look_for(look, job, 20, monkeypatch)
        talk = hear(look, SlowNodes((2, 3), 0.4, 1, "node-b", since_s=15.0, window_s=10.0))
        ((what, profile),) = talk.said
        assert what == "like"
        assert isinstance(profile, Profile)
        assert (profile.rank, profile.pid, profile.thread) == (1, 101, 7)
        assert len(profile.samples) == 100
        assert min(one.count for one in profile.samples) == 51
        text = said.read_text()
        assert (
            "wait for ranks 2 and 3 again and again, and they for none of them. (reported by"
            in text
        )

    def test_why_it_is_not_known_stands_in_the_account(
        self, look: StragglerLook, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look_for(look, job, 20, monkeypatch)
        hear(look, SlowNodes(unknown="on node-b, some ranks have ended"))
        assert look.conclude().unknown == "on node-b, some ranks have ended"
