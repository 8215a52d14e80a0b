"""Notices about a job that does not start: no rank checks in, or they do not come together.

The second are the doctor's checks, in a thread next to the job. They are made only once ranks
have been inside init_process_group for a while, or a launcher has waited for longer, and only
failures are reported: a job that starts gets no notice.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hangwatch.console import News
from hangwatch.evidence.background import Tasks, in_thread
from hangwatch.evidence.pages.look import Look
from hangwatch.evidence.processes import PROC, Tree, environment
from hangwatch.evidence.sockets import listens_at
from hangwatch.model.kinds import Phase
from hangwatch.model.page import RankPage
from hangwatch.preflight import Finding, Grade, network, rendezvous
from hangwatch.preflight.job import Job, job
from hangwatch.preflight.network import interfaces
from hangwatch.preflight.variables import out_of_range, same_ranks
from hangwatch.run.handshake import Hello
from hangwatch.watchdog import timing

_WHY = (
    "Python does not load hangwatch with -S, nor with -I, -E or another PYTHONPATH if hangwatch is "
    "not installed for it: install it there, or call hangwatch.agent.arm() at the top of the "
    "training script"
)
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


@dataclass(slots=True)
class Absence:
    """Looks for ranks among the command's processes until the first page is there."""

    commands: Callable[[], Sequence[int]]
    """Pids of the processes that the supervisors have started."""
    news: News
    proc: str = PROC
    _next_s: float = 0.0
    _since_s: float | None = None
    _most: int = 0

    def look(self, now_s: float) -> None:
        """Look if a look is due; call it while there is no page."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + timing.ABSENCE_LOOK_S
        tree = Tree(self.proc)
        ranks = [rank for pid in self.commands() for rank in tree.launched_ranks(pid)]
        self._most = max(self._most, len(ranks))
        if not ranks:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= timing.CHECK_IN_S:
            self.news.lose(
                "absence",
                f"{self._ranks()} {timing.CHECK_IN_S:g} s ago and none has checked in: the job is "
                f"not watched. If it uses torch.distributed: {_WHY}",
            )

    def ended(self) -> None:
        """Report that the command has ended, and there never was a page."""
        text = f"{self._ranks()} but none checked in: nothing was watched. {_WHY}"
        if not self._most:
            text = (
                "no rank checked in on this node: no process had RANK and WORLD_SIZE or called "
                "init_process_group, so there was nothing to watch. If there should have been: "
                f"{_WHY}"
            )
        self.news.lose("absence", text)

    def _ranks(self) -> str:
        return f"{self._most} rank{'s were' if self._most != 1 else ' was'} started"


@dataclass(frozen=True, slots=True)
class Start:
    """The processes that are checked: ranks of this node, or the launcher alone."""

    command: tuple[str, ...]
    commands: tuple[int, ...]
    """Pids of the processes that the supervisors have started; none if they may be no ranks."""
    ranks: tuple[RankPage, ...]
    """Ranks inside init_process_group, or ended by an exception before."""
    variables: dict[str, str]
    """Environment of the first of them."""
    late: bool
    proc: str = PROC


@dataclass(slots=True)
class Preflight:
    """Checks a job that does not start."""

    hello: Hello
    news: News
    proc: str = PROC
    _began_ns: int = 0
    _variables: dict[int, dict[str, str]] = field(default_factory=dict)
    """Environments by pid: that of a rank that has ended cannot be read."""
    _checked: set[str] = field(default_factory=set)
    _tasks: Tasks = field(default_factory=Tasks)
    _over: bool = False

    def look(self, look: Look) -> None:
        """Check the job if it is time to; called at each look of the monitor. Never raises."""
        if self._over:
            return
        try:
            self._look(look)
        except Exception as error:  # noqa: BLE001 (the job is watched all the same)
            self._over = True
            what = f"no checks of the start: {type(error).__name__}: {error}"
            self.news.fault("preflight", what, error, quiet=True)

    async def conclude(self) -> None:
        """Wait for checks that are under way; the job has ended."""
        await self._tasks.settle(timing.START_CHECK_END_S)

    def _look(self, look: Look) -> None:
        self._began_ns = self._began_ns or look.now_ns
        pages = [seen.light for seen in look.seen.values()]
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
            self._begin("raised", raised)
        elif waited_s >= timing.INIT_LATE_S:
            self._begin("late", inside)
        elif inside and waited_s >= timing.INIT_SOON_S:
            self._begin("soon", inside)

    def _begin(self, when: str, ranks: Sequence[RankPage]) -> None:
        if when in self._checked:
            return
        self._checked.add(when)
        variables = self._variables[ranks[0].identity.pid] if ranks else {}
        # Ranks that were not started by a supervisor may have inherited another one's RANK.
        commands = () if self.hello.self_started else tuple(self.hello.commands())
        start = Start(
            self.hello.run.command, commands, tuple(ranks), variables, when == "late", self.proc
        )
        self._tasks.start(self._check(start))

    async def _check(self, start: Start) -> None:
        findings: list[Finding] = []
        try:
            await in_thread(lambda: findings.extend(certain(start)), timing.START_CHECK_S)
        except (OSError, ValueError) as error:
            self.news.debug(f"the start of the job cannot be checked: {error}")
        for finding in [] if self._over else findings:
            text = f"the job cannot start: {finding.what}; {finding.remedy}"
            self.news.once(f"preflight:{finding.what}", text)


def certain(start: Start, resolver: network.Resolve = network.resolve) -> Iterator[Finding]:
    """Yield what certainly keeps the job from starting; may take as long as a name server."""
    for page in start.ranks:
        yield from out_of_range(page.identity.rank, page.identity.world_size)
    announced = {
        str(page.identity.rank) for page in start.ranks if page.identity.pid in start.commands
    }
    environs = [_variables(pid, start.proc) for pid in start.commands]
    yield from same_ranks(variables for variables in environs if variables.get("RANK") in announced)
    options = job(start.variables) if start.ranks else job({}, start.command)
    if start.ranks:
        yield from _gloo_on_loopback(start, options, resolver)
    elif not options.launched:
        return
    if start.late and options.host and options.port:
        yield from _rendezvous(options, options.port, resolver)


def _rendezvous(options: Job, port: int, resolver: network.Resolve) -> Iterator[Finding]:
    place = rendezvous.look_up(options.host, port, interfaces(), resolver, socket.gethostname())
    finding = rendezvous.resolution(place, options)
    if finding is None and not place.here:
        finding = rendezvous.reachable(place, options, rendezvous.connect, lambda _: "")
    if finding is not None and finding.grade is Grade.FAIL:
        yield finding


def _gloo_on_loopback(start: Start, options: Job, resolver: network.Resolve) -> Iterator[Finding]:
    """Yield that gloo uses the loopback on several nodes: a rank listens there, or failed of it."""
    if not options.several_nodes:
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
        yield network.gloo(choice, options, present, used=True)


def _variables(pid: int, proc: str) -> dict[str, str]:
    return environment(pid, _NAMES.__contains__, proc)
