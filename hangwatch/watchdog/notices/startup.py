"""What to say of a job in which no rank ever checks in.

The doctor's checks, beside the job and in a thread that nobody waits for. They look only
once ranks have been inside init_process_group for a while, or a launcher has waited for
longer, and say only what fails: a job that starts is never told anything.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hangwatch.console import News
from hangwatch.evidence.pages.look import Look
from hangwatch.evidence.processes import PROC, Tree, environment
from hangwatch.evidence.sockets import listens_at
from hangwatch.model.kinds import Phase
from hangwatch.model.page import RankPage
from hangwatch.preflight import network, rendezvous
from hangwatch.preflight.finding import Finding, Grade
from hangwatch.preflight.job import Job, job
from hangwatch.preflight.network import interfaces
from hangwatch.preflight.variables import out_of_range, same_ranks
from hangwatch.run.handshake import Hello

PATIENCE_S = 60.0
"""Ranks that run for so long without a page will have none any more."""
_LOOK_S = 2.0
_WHY = (
    "Python does not load hangwatch with -I, -E or -S, nor where PYTHONPATH is reset; call "
    "hangwatch.agent.arm() at the top of the training script instead"
)


@dataclass(slots=True)
class Absence:
    """Looks for ranks among the command's processes until the first page is there."""

    commands: Callable[[], Sequence[int]]
    """Pids of what the supervisors have started."""
    news: News
    proc: str = PROC
    _next_s: float = 0.0
    _since_s: float | None = None
    _most: int = 0

    def look(self, now_s: float) -> None:
        """One look, where one is due; call it while there is no page."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        tree = Tree(self.proc)
        ranks = [rank for pid in self.commands() for rank in tree.launched_ranks(pid)]
        self._most = max(self._most, len(ranks))
        if not ranks:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= PATIENCE_S:
            self.news.lose(
                "absence",
                f"{self._ranks()} {PATIENCE_S:g} s ago and none has checked in: the job is not "
                f"watched. If it uses torch.distributed: {_WHY}",
            )

    def ended(self) -> None:
        """The command has ended, and there never was a page."""
        if self._most:
            self.news.lose(
                "absence", f"{self._ranks()} but none checked in: nothing was watched. {_WHY}"
            )
        else:
            self.news.lose(
                "absence",
                "no rank checked in on this node: no process had RANK and WORLD_SIZE or called "
                "init_process_group, so there was nothing to watch. If there should have been: "
                f"{_WHY}",
            )

    def _ranks(self) -> str:
        return f"{self._most} rank{'s were' if self._most != 1 else ' was'} started"


SOON_S = 8.0
"""Healthy ranks of one node leave init_process_group sooner."""
LATE_S = 40.0
"""Names and routes of a pod may come this late, and other nodes later."""
END_S = 3.0
"""How long the end of the watch waits for an answer."""
_STARTED = frozenset({Phase.RUNNING, Phase.FINALIZING, Phase.EXITED})
_NAMES = frozenset(
    {
        "GLOO_SOCKET_IFNAME",
        "GROUP_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
    }
)


@dataclass(frozen=True, slots=True)
class Start:
    """What is looked at: ranks of this node that do not get on, or the launcher alone."""

    command: tuple[str, ...]
    commands: tuple[int, ...]
    """Pids of what the supervisors have started, where each is a process of its own."""
    ranks: tuple[RankPage, ...]
    """Inside init_process_group, or ended by an exception before."""
    variables: dict[str, str]
    """Of the first of them."""
    late: bool
    proc: str = PROC


@dataclass(slots=True)
class Preflight:
    """Called at each look of the monitor."""

    hello: Hello
    news: News
    proc: str = PROC
    _began_ns: int = 0
    _variables: dict[int, dict[str, str]] = field(default_factory=dict)
    """By pid: of a rank that has ended nothing is to be read any more."""
    _asked: set[str] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)
    _found: list[Finding] = field(default_factory=list)
    _over: bool = False

    def look(self, look: Look) -> None:
        """Ask where it is time to, and say what was found; never raises."""
        if self._over:
            return
        try:
            self._look(look)
            self._say()
        except Exception as error:  # noqa: BLE001 (the job is watched all the same)
            self._over = True
            what = f"no checks of the start: {type(error).__name__}: {error}"
            self.news.fault("preflight", what, error, quiet=True)

    async def conclude(self) -> None:
        """The job has ended: say what was asked about it, if the answer comes soon."""
        deadline = time.monotonic() + END_S
        while any(one.is_alive() for one in self._threads) and time.monotonic() < deadline:  # noqa: ASYNC110 (bounded)
            await asyncio.sleep(0.05)
        if not self._over:
            self._say()

    def _look(self, look: Look) -> None:
        self._began_ns = self._began_ns or look.now_ns
        pages = [one.light for one in look.seen.values()]
        for page in pages:
            pid = page.identity.pid
            if pid not in self._variables:
                self._variables[pid] = _variables(pid, self.proc)
        if any(page.phase in _STARTED for page in pages):
            self._over = True
            return
        raised = [page for page in pages if page.phase is Phase.RAISED and page.exception]
        inside = [page for page in pages if page.phase is Phase.INIT and page.in_call_ns]
        since_ns = min((page.in_call_ns for page in inside), default=self._began_ns)
        waited_s = (look.now_ns - since_ns) / 1e9
        if raised:
            self._ask("raised", raised, late=False)
        elif waited_s >= LATE_S:
            self._ask("late", inside, late=True)
        elif inside and waited_s >= SOON_S:
            self._ask("soon", inside, late=False)

    def _ask(self, when: str, ranks: Sequence[RankPage], *, late: bool) -> None:
        if when in self._asked:
            return
        self._asked.add(when)
        variables = self._variables[ranks[0].identity.pid] if ranks else {}
        # Ranks that nobody has wrapped may have inherited a RANK that is not theirs.
        commands = () if self.hello.self_started else tuple(self.hello.commands())
        start = Start(self.hello.run.command, commands, tuple(ranks), variables, late, self.proc)
        thread = threading.Thread(target=self._answer, args=(start,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _answer(self, start: Start) -> None:
        try:
            self._found.extend(certain(start))
        except (OSError, ValueError) as error:
            self.news.debug(f"the start of the job cannot be checked: {error}")

    def _say(self) -> None:
        while self._found:
            finding = self._found.pop(0)
            self.news.once(
                f"preflight:{finding.what}",
                f"the job cannot start: {finding.what}; {finding.remedy}",
            )


def certain(start: Start, resolver: network.Resolve = network.resolve) -> Iterator[Finding]:
    """What keeps the job from starting, beyond doubt; may take as long as a name server."""
    for page in start.ranks:
        yield from out_of_range(page.identity.rank, page.identity.world_size)
    announced = {
        str(page.identity.rank) for page in start.ranks if page.identity.pid in start.commands
    }
    environs = [_variables(pid, start.proc) for pid in start.commands]
    yield from same_ranks(one for one in environs if one.get("RANK") in announced)
    if start.ranks:
        told = job(start.variables)
        yield from _gloo_on_loopback(start, told, resolver)
    else:
        told = job({}, start.command)
        if not told.launched:
            return
    if start.late and told.host and told.port:
        yield from _meeting_place(told, resolver)


def _meeting_place(told: Job, resolver: network.Resolve) -> Iterator[Finding]:
    place = rendezvous.look_up(
        told.host, told.port or 0, interfaces(), resolver, socket.gethostname()
    )
    finding = rendezvous.resolution(place, told)
    if finding is None and not place.here:
        finding = rendezvous.reachable(place, told, rendezvous.connect, lambda _: "")
    if finding is not None and finding.grade is Grade.FAIL:
        yield finding


def _gloo_on_loopback(start: Start, told: Job, resolver: network.Resolve) -> Iterator[Finding]:
    """Gloo really uses the loopback on several nodes: a rank listens there, or failed of it."""
    if not told.several_nodes:
        return
    present = interfaces()
    choice = network.gloo_choice(start.variables, present, socket.gethostname(), resolver)
    if choice.address is None or not choice.address.is_loopback:
        return
    address = str(choice.address)
    errors = [page.exception.story for page in start.ranks if page.exception]
    if any(f"[{address}]" in error for error in errors) or any(
        listens_at(page.identity.pid, address, start.proc) for page in start.ranks
    ):
        yield network.gloo(choice, told, present, used=True)


def _variables(pid: int, proc: str) -> dict[str, str]:
    return environment(pid, _NAMES.__contains__, proc)
