"""Finds the positions of a culprit and of another rank that took different paths."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hangwatch.diagnosis.facts.alignment import END, LEFT, Divergence, Made
from hangwatch.diagnosis.facts.endings import How
from hangwatch.diagnosis.facts.history import Step
from hangwatch.diagnosis.facts.stores import setter
from hangwatch.diagnosis.facts.wait_points import ANYONE, Channel, Setup, Slot
from hangwatch.diagnosis.rules.case import Case, Finding
from hangwatch.diagnosis.source.program import Line, Position
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.snapshot import OpRecord


@dataclass(frozen=True, slots=True)
class Split:
    """The positions of a culprit and of another rank that took different paths."""

    culprit: int
    other: int | None
    """None if the other path is the one that the culprit itself took before."""
    start: Line | None
    """The last line that both passed, None if unknown."""
    mine: Position
    theirs: Position
    known: bool = False
    """The culprit was there before, and continued."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The culprit, and the other rank if there is one."""
        return (self.culprit,) if self.other is None else (self.culprit, self.other)

    @property
    def own_lines(self) -> list[Line]:
        """The lines of the culprit's stack that are not in the other, innermost first."""
        shared = {*self.theirs.frames}
        return [line for line in reversed(self.mine.frames) if line not in shared]


def splits(case: Case, finding: Finding, weight: Callable[[int], int]) -> Iterator[Split]:
    """The splits of culprits and others, the best known first.

    weight: the others for which it is least are compared with the culprits first.
    """
    culprits = {*finding.culprits}
    key = finding.wait_point
    if isinstance(key, Setup) and key.keys:
        yield from _from_its_own_key(case, finding.culprits[0], key)
        return
    points = [finding.wait_point, *(wait.wait_point for wait in finding.waits)]
    for point in dict.fromkeys(points):
        if isinstance(point, Channel) and point.peer in (ANYONE, *culprits):
            peer = finding.culprits[0] if point.peer == ANYONE else point.peer
            yield from _from_its_own_message(case, peer, point)
    divergences = [one for one in case.departures.divergences if len(culprits & {*one.ranks}) == 1]
    waiting = {wait.rank for wait in finding.waits}
    divergences.sort(
        key=lambda one: (
            sum(weight(rank) for rank in one.ranks if rank not in culprits),
            waiting.isdisjoint({*one.ranks} - culprits),
            -one.pairs,
        )
    )
    for divergence in divergences[:2]:
        culprit, other = sorted(divergence.ranks, key=lambda rank: rank not in culprits)
        split = _nearest(case, divergence, (culprit, other))
        if split is not None:
            yield split
    culprit = finding.culprits[0]
    mine = position(case, culprit) or _at(finding.site)
    for other in sorted(_others(case, finding), key=weight):
        theirs = position(case, other) or _at(finding.victim_site)
        if mine is None or theirs is None or mine == theirs:
            continue
        if not _is_in_a_message_of_others(case, other, culprits):
            start = _last_of_both(case, culprit, other, theirs)
            known = mine.line in lines_before(case, culprit)
            yield Split(culprit, other, start, mine, theirs, known)
            if start == theirs.line:  # it was a guess
                yield Split(culprit, other, None, mine, theirs, known)
            break
    yield from _from_its_own_part(case, finding, culprit)


def _from_its_own_key(case: Case, culprit: int, wait_point: Setup) -> Iterator[Split]:
    """The split of a culprit from the line at which it set a key of that form before.

    Begins there, or at its current line: it may have passed there since.
    """
    known, mine = setter(case.job.ranks, wait_point.keys), position(case, culprit)
    if known is None or mine is None or culprit not in known.behind:
        return
    line = line_at(known.site)
    since = [
        record.site
        for _, record in case.job.ops.get(culprit, [])
        if record.site is not None and record.issued_age_s < known.age_s
    ]
    start = line_at(since[-1]) if since else line
    for begin in dict.fromkeys((start, mine.line)):
        yield Split(culprit, None, begin, mine, Position((line,)), known=True)


def _nearest(case: Case, divergence: Divergence, ranks: tuple[int, int]) -> Split | None:
    """The split at a divergence, with the calls in groups that one of them alone is in."""
    if None in divergence.last and not all(_is_complete(case, rank) for rank in ranks):
        return None
    mine, theirs = (
        _since(case, rank, divergence, _kinds(case, other)) for rank, other in (ranks, ranks[::-1])
    )
    both = {key for key, _, _ in mine} & {key for key, _, _ in theirs}
    # A call for one alone is its part in the program.
    mine, theirs = (
        [step for step in some if step[0] in both or not step[2] or step is some[-1]]
        for some in (mine, theirs)
    )
    start = _start(case, divergence)
    for (key, here, _), (other, there, _) in zip(mine, theirs, strict=False):
        if key != other:
            if here is None or there is None:
                return None
            usual = {_line_of_step(case, step) for step in divergence.before}
            step = divergence.seen_by(ranks[0])[1][0].step
            if start is None and not step.file and step in divergence.before:
                start = there.line  # the culprit has come by the call of the other before
            return Split(*ranks, start, here, there, here.line in usual)
        start = here.line if here is not None else start
    return None


def _since(
    case: Case, rank: int, divergence: Divergence, kinds: Collection[object]
) -> list[tuple[object, Position | None, bool]]:
    """(call, position, may be for the rank alone) of its calls from the last that both made on.

    The last one is the call at which they diverged. kinds: of groups that the other one is in.
    """
    side = divergence.ranks.index(rank)
    last, made = divergence.last[side], divergence.ways[side][0]
    found: list[tuple[object, Position | None, bool]] = []
    for gid, record in case.job.ops.get(rank, ()):
        at = (gid, record.seq, record.p2p)
        if at == (made.gid, made.seq, made.p2p):
            break
        if record.site is not None:
            line = line_at(record.site)
            alone = record.p2p or _kind(record.group) not in kinds
            found.append(((record.wire, line), Position((line,)), alone))
        if last is not None and at == (last.gid, last.seq, last.p2p):
            found.clear()
    key = made.step.wire, _line_of_step(case, made.step)
    return [*found, (key, _position(case, rank, made), False)]


def _kinds(case: Case, rank: int) -> set[object]:
    """The kinds of groups that a rank is in."""
    return {_kind(case.job.keys[gid]) for gid in case.job.progress.get(rank, {})}


def _kind(key: GroupKey) -> object:
    return key.desc or len(key.ranks)


def _is_complete(case: Case, rank: int) -> bool:
    """Return True if all calls that Python made are known of a rank."""
    groups = case.job.progress.get(rank, {})
    made = Counter(
        gid for gid, one in case.job.ops.get(rank, ()) if one.source == "page" and not one.p2p
    )
    return all(made[gid] >= one.by_python >= 0 for gid, one in groups.items())


def _from_its_own_message(case: Case, culprit: int, channel: Channel) -> Iterator[Split]:
    """The split of a culprit that skips a message from its own line for it."""
    wanted = "recv" if channel.sends else "send"
    lines = [
        line_at(record.site)
        for _, record in case.job.ops.get(culprit, ())
        if record.site and record.peer == channel.waiter and record.wire == wanted
    ]
    yield from _from_its_own_line(case, culprit, lines)


def _from_its_own_part(case: Case, finding: Finding, culprit: int) -> Iterator[Split]:
    """The split of a culprit that skips the call of the others from its own line for it."""
    slot, mine = finding.wait_point, position(case, culprit)
    waits = ((wait.rank, wait.record) for wait in finding.waits if wait.rank != culprit)
    other, call = next((pair for pair in waits if pair[1] is not None), (-1, None))
    if not isinstance(slot, Slot) or mine is None or call is None:
        return
    theirs = lines_of(case, other)
    lines = [
        line
        for gid, record in case.job.ops.get(culprit, ())
        if (gid, record.wire) == (slot.gid, call.wire) and record.site is not None
        if (line := line_at(record.site)) not in theirs and line != mine.line
    ]
    yield from _from_its_own_line(case, culprit, lines)


def _from_its_own_line(case: Case, culprit: int, lines: Sequence[Line]) -> Iterator[Split]:
    """The split of a culprit from the last of its own lines for a call, if it is elsewhere."""
    mine, before = position(case, culprit), lines_before(case, culprit)
    if mine is not None and lines and before and mine.line != lines[-1]:
        theirs = Position((lines[-1],))
        yield Split(culprit, None, before[-1], mine, theirs, mine.line in before)


def _is_in_a_message_of_others(case: Case, rank: int, culprits: set[int]) -> bool:
    """Return True if a rank waits for a message that has nothing to do with the culprits."""
    points = (wait.wait_point for wait in case.graph.by_rank.get(rank, ()))
    return any(isinstance(point, Channel) and point.peer not in culprits for point in points)


def _others(case: Case, finding: Finding) -> list[int]:
    """The ranks that did not do the same as the culprits, first the ranks that wait for them."""
    slot = finding.wait_point
    members = case.job.members(slot.gid) if isinstance(slot, Slot) else ()
    ranks = [*(wait.rank for wait in finding.waits), *finding.victims, *members]
    return [rank for rank in dict.fromkeys(ranks) if rank not in finding.culprits]


def _position(case: Case, rank: int, made: Made) -> Position | None:
    """The position at which a rank made a call, or the next one of which that is known."""
    if made.step == END:
        return Position()
    if made.step.wire == LEFT:
        line = case.source.program.only_call(LEFT)
        return Position((line,)) if line is not None else None
    stack, slot = _stack(case, rank), Slot(made.gid, made.seq)
    here = any(wait.wait_point == slot for wait in case.graph.by_rank.get(rank, ()))
    line = _line_of_step(case, made.step)
    if here and stack is not None and line in (None, stack.line):
        return stack
    return Position((line,)) if line is not None else None


def sides_of(case: Case, ranks: Iterable[int]) -> list[tuple[int, ...]]:
    """Ranks by where they are."""
    sides: dict[Position | None, list[int]] = defaultdict(list)
    for rank in ranks:
        sides[position(case, rank)].append(rank)
    return [tuple(side) for side in sides.values()]


def position(case: Case, rank: int) -> Position | None:
    """The position at which a rank made the call that it waits in, else the one where it is."""
    stack = _stack(case, rank)
    waits = case.graph.by_rank.get(rank, ())
    lines = [line for wait in waits if (line := line_of(case, wait.record)) is not None]
    if not lines or (stack is not None and stack.line in lines):
        return stack
    return Position((lines[0],))


def lines_before(case: Case, rank: int) -> list[Line]:
    """The lines of the calls of a rank, but for the calls that it waits in."""
    waits = [w.record for w in case.graph.by_rank.get(rank, ()) if w.record is not None]
    made = [record for _, record in case.job.ops.get(rank, ()) if record not in waits]
    # all_gather_object and its like make several calls, and the rank is still in one of them.
    parts = {(one.op, one.site) for one in waits if one.op != one.wire}
    while made and (made[-1].op, made[-1].site) in parts:
        made.pop()
    return [line for record in made if (line := line_of(case, record)) is not None]


def _stack(case: Case, rank: int) -> Position | None:
    """The position of a rank now, or when a peer's end threw it out; None if unknown."""
    end = case.ended.get(rank)
    if case.has_returned(rank):
        return Position()
    if end is None:
        frames = case.stack(rank)
        return Position(tuple(Line(one.file, one.line) for one in frames)) if frames else None
    if end.how is How.CLEAN:
        return Position()
    return _at(end.exception.site if end.exception is not None else None)


def _at(site: Site | None) -> Position | None:
    return Position((line_at(site),)) if site is not None else None


def _start(case: Case, divergence: Divergence) -> Line | None:
    """The line of the last call that both made and that has one."""
    lines = (_line_of_step(case, step) for step in reversed(divergence.before))
    return next((line for line in lines if line is not None), None)


def _line_of_step(case: Case, step: Step) -> Line | None:
    if step.file:
        return Line(step.file, step.line)
    return case.source.program.only_call("backward") if step.wire == "all_reduce" else None


def _last_of_both(case: Case, culprit: int, other: int, theirs: Position) -> Line | None:
    """The line of the last call of a culprit that the other made as well.

    A call that C++ issued has no line: then it is the one where the other is now.
    """
    known = {*lines_of(case, other)}
    before = next((line for line in reversed(lines_before(case, culprit)) if line in known), None)
    groups = case.job.progress.get(culprit, {}).values()
    return before or (theirs.line if any(one.enqueued > 0 for one in groups) else None)


def lines_of(case: Case, rank: int) -> list[Line]:
    """The lines of all calls of a rank that have one."""
    made = case.job.ops.get(rank, ())
    return [line for _, record in made if (line := line_of(case, record)) is not None]


def line_of(case: Case, record: OpRecord | None) -> Line | None:
    """The line of a call; of a bucket that C++ has issued the only one that calls backward()."""
    if record is None:
        return None
    if record.site is not None:
        return line_at(record.site)
    is_bucket = record.source == "flight" and record.wire == "all_reduce"
    return case.source.program.only_call("backward") if is_bucket else None


def line_at(site: Site) -> Line:
    """The line of a site, without its text."""
    return Line(site.file, site.line)
