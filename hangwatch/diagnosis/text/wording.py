"""The headline and explanation of a finding on ranks that are missing, gone or stuck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hangwatch.diagnosis.facts.activity import Activity
from hangwatch.diagnosis.facts.endings import Ending, How
from hangwatch.diagnosis.facts.error_texts import Library
from hangwatch.diagnosis.text.phrases import (
    MAX_SHOWN,
    ONE_NAME,
    Ranks,
    at_line,
    ended,
    now,
    place_in_code,
)
from hangwatch.model.calls import Site
from hangwatch.text import capital, code_line, the_nodes, the_ranks, verb


@dataclass(frozen=True, slots=True)
class Text:
    """The sentences of a finding."""

    headline: str
    explanation: str

    def adding(self, *notes: str) -> Text:
        """Return this text with more sentences at the end of its explanation."""
        return text(self.headline, self.explanation, *notes)


def text(headline: str, *grounds: str) -> Text:
    """A headline, and an explanation of the sentences that are not empty."""
    return Text(headline, sentences(*grounds))


def sentences(*parts: str) -> str:
    """Join the sentences that are not empty."""
    return " ".join(part for part in parts if part)


def located(begin: str, site: Site | None) -> str:
    """``They wait at train.py:41 ...``, empty for no site."""
    return f"{begin} at {place_in_code(site)}." if site else ""


def side(ranks: Ranks, site: Site | None) -> str:
    """``Ranks 1 and 3: train.py:41 ...``, empty for no site."""
    return f"{capital(the_ranks(ranks))}: {place_in_code(site)}." if site else ""


@dataclass(frozen=True, slots=True)
class Scene:
    """Culprits and others with their lines. ``where``: the text of the wait point."""

    culprits: Ranks
    others: Ranks
    """The ranks that wait for them, or disagree with them."""
    where: str
    site: Site | None = None
    other_site: Site | None = None
    sites: Mapping[int, Site] = field(default_factory=dict)
    """The known lines of single ranks: the ranks of one side may be at several lines."""

    @property
    def they(self) -> str:
        """``Rank 2``, to begin a sentence with."""
        return capital(the_ranks(self.culprits))

    @property
    def rest(self) -> str:
        """``ranks 0, 1 and 3``, the others."""
        return the_ranks(self.others)

    @property
    def it(self) -> str:
        """``it`` or ``they``, the culprits."""
        return verb(self.culprits, "it", "they")

    @property
    def are(self) -> str:
        """``is`` or ``are``."""
        return verb(self.culprits, "is", "are")

    def seen(self) -> str:
        """``Rank 2 is at train.py:41 ...``, empty if that is not known."""
        known = self.lines(self.culprits, self.site)
        return sentences(*(_does(ranks, verb(ranks, "is", "are"), site) for ranks, site in known))

    def waiting(self, *, failed: bool = False) -> str:
        """``Ranks 0 and 1 wait at train.py:41 ...``, or failed; empty if that is not known."""
        known = self.lines(self.others, self.other_site)
        does = ("failed", "failed") if failed else ("waits", "wait")
        return sentences(*(_does(ranks, verb(ranks, *does), site) for ranks, site in known))

    def lines(self, ranks: Ranks, site: Site | None) -> list[tuple[Ranks, Site]]:
        """The lines of some ranks, the given one first; a rank without a known line is at it."""
        if site is None:
            return []
        by_line: dict[tuple[str, int], tuple[list[int], Site]] = {
            (site.file, site.line): ([], site)
        }
        for rank in ranks:
            known = self.sites.get(rank, site)
            by_line.setdefault((known.file, known.line), ([], known))[0].append(rank)
        return [(tuple(some), at) for some, at in by_line.values() if some][:MAX_SHOWN]

    def at(self, ranks: Ranks, site: Site | None) -> str:
        """`` at train.py:41``, empty where some ranks are not all at one line."""
        known = self.lines(ranks, site)
        return at_line(known[0][1]) if len(known) == 1 else ""

    @property
    def here(self) -> str:
        """`` at train.py:41``, where the culprits are; empty for several lines."""
        return self.at(self.culprits, self.site)

    @property
    def there(self) -> str:
        """`` at train.py:41``, where the others are; empty for several lines."""
        return self.at(self.others, self.other_site)

    def awaited(self, where: str = "", *, failed: bool = False) -> str:
        """``; ranks 0, 1 and 3 wait for it in all_reduce #3.``."""
        if not self.others:
            return "."
        them, tail = verb(self.culprits, "it", "them"), f" in {where}" if where else ""
        if failed:
            return f"; {self.rest} failed after {them}{tail}."
        return f"; {self.rest} {verb(self.others, 'waits', 'wait')} for {them}{tail}."


def _does(ranks: Ranks, does: str, site: Site) -> str:
    return located(f"{capital(the_ranks(ranks))} {does}", site)


def never_entered(scene: Scene, activity: Activity, doing: str, *, timed_out: bool = False) -> Text:
    """Living ranks that others wait for, or waited for until their time-out.

    activity: of the first of them; doing: the text on what all of them do.
    """
    worker = located(f"Its data worker {activity.worker} is", activity.worker_site)
    them = verb(scene.culprits, "it", "them")
    waited = f"; {scene.rest} waited for {them} until the time-out of that call."
    return text(
        f"{scene.they} never entered {scene.where}: {doing}"
        + (waited if timed_out else scene.awaited()),
        worker or scene.seen(),
        _compiler(activity),
        scene.waiting(),
    )


def crossed(known: Text, thread: str, where: str, others: Ranks) -> Text:
    """The text on a rank that waits for a lock that another of its threads holds in a collective.

    thread, where: the thread that holds the lock, and the call that it is in.
    """
    return known.adding(
        f"{capital(thread)}, which holds it, waits in {where} for {the_ranks(others)}: each side "
        "waits for the other, and none of them left the common sequence of calls."
    )


def _compiler(activity: Activity) -> str:
    """The work of a compiler, empty where nothing compiles."""
    if activity.compiling is None or activity.compiling.locked:
        return ""
    if activity.compiling.at_work:
        return "It is using the CPU: as long as it does, the job is reported as slow, not as hung."
    return "Neither it nor a process that it started was using the CPU when it was sampled."


def unseen(scene: Scene, why: Sequence[str], *, failed: bool) -> Text:
    """Ranks of which nothing is known. failed: the others lost a connection to them."""
    culprits, its = the_ranks(scene.culprits), verb(scene.culprits, "its", "their")
    headline = f"{scene.they} never entered {scene.where}, and {its} state is unknown"
    tail = scene.awaited()
    if failed:
        who = f"One of {culprits}" if len(scene.culprits) > 1 else scene.they
        headline = f"{who} probably died, but this was not observed"
        tail = scene.awaited(scene.where, failed=True)
    may = "have failed" if failed else "be waiting"
    itself = verb(scene.culprits, "itself", "themselves")
    return text(
        headline + tail,
        f"Nothing is known of {culprits}: {scene.it} may {may} {itself}.",
        *(f"{capital(reason)}." for reason in why[:2]),
        scene.waiting(failed=failed),
    )


_ABORTS = {
    Library.GLOO: "gloo aborts a rank that is sent more than it expects: another rank may have "
    "entered another collective there, or passed a larger tensor.",
    Library.NCCL: "PyTorch's NCCL watchdog aborts a rank after an error of its GPU or of NCCL, "
    "and after a time-out: the output of the rank says which.",
}


def died(  # noqa: PLR0913 (by keyword)
    scene: Scene,
    end: Ending,
    *,
    failed: bool,
    aborted: Library | None = None,
    rivals: Ranks = (),
    runs_at: Site | None = None,
) -> Text:
    """Ranks that raised or were killed.

    aborted: the library that may have ended the process. rivals: other ranks that may have
    caused that. runs_at: the line of the user's code that a rank still runs.
    """
    tail = scene.awaited(scene.where, failed=failed) if scene.where else "."
    if scene.where and not scene.others:
        tail = f" in {scene.where}{'' if end.exception else scene.here}."
    unnamed = tuple(rank for rank in rivals if rank not in scene.others)
    if unnamed:
        tail = f"{tail.rstrip('.')}; {the_ranks(unnamed)} may be the cause."
    over, blame = "", ""
    explains = aborted is Library.GLOO  # what its own exception does not say
    if end.in_shutdown and end.how is How.EXIT_CODE:
        over = "The program itself exited with that code, for example by sys.exit()."
    elif end.in_shutdown:
        over = "The program had reached its end: the interpreter was shutting down."
    if rivals:
        either = f"{the_ranks(scene.culprits)} or {the_ranks(rivals)}"
        blame = f"It is not known which rank left the common sequence of calls: {either}."
    elif scene.others:
        victims = ("is a victim: what it reports", "are victims: what they report")
        culprits = the_ranks(scene.culprits)
        came = f"at about the same time, from a call that needs {culprits}"
        if not end.contested:
            came = f"after {culprits} failed"
        blame = f"{capital(scene.rest)} {verb(scene.others, *victims)} came {came}."
    return text(
        f"{scene.they} {ended(end, scene.culprits)}{tail}",
        located("It was raised", scene.site if end.exception else None),
        over,
        f"Its process still runs, at {place_in_code(runs_at)}, and may still make the call."
        if runs_at
        else "",
        _ABORTS[aborted] if aborted is not None and (explains or end.abort is None) else "",
        blame,
    )


def lost(scene: Scene, nodes: Sequence[str], here: Sequence[str], *, failed: bool) -> Text:
    """Ranks whose nodes cannot be reached.

    here: the nodes from which no other one can be reached, empty where some can.
    """
    which = the_nodes(nodes)
    its = "its node" if len(scene.culprits) == 1 else f"their node{'s' if len(nodes) > 1 else ''}"
    headline = f"{scene.they} {verb(scene.culprits, 'was', 'were')} lost with {its} ({which})"
    if here:
        headline += f", or {the_nodes(here)} {'is' if len(here) == 1 else 'are'} cut off"
    return text(
        headline + (scene.awaited(scene.where, failed=failed) if scene.where else "."),
        f"No other node can be reached from {the_nodes(here)}, so it is not known which of them is "
        "at fault."
        if here
        else f"Neither the watchdog nor the machine of {which} replies.",
        scene.waiting(failed=failed),
    )


class Gone(StrEnum):
    """The way in which ranks left the others, which still run."""

    OVER = "{} {enter} no more collectives, so the others can never complete this one."
    LEFT = "{} {have} left the group for good, so the others can never complete this one."
    RETURNED = (
        "{} {enter} no more collectives, unless a thread or an exit handler that still runs makes "
        "them."
    )


def finished(scene: Scene, how: str, gone: Gone, *, failed: bool) -> Text:
    """Ranks that ended, or left the group, while others still use it."""
    enter, have = verb(scene.culprits, "enters", "enter"), verb(scene.culprits, "has", "have")
    return text(
        f"{scene.they} finished early: {how}{scene.awaited(scene.where, failed=failed)}",
        gone.format(capital(scene.it), enter=enter, have=have),
        located(f"The last known call of {the_ranks(scene.culprits)} was", scene.site),
        scene.waiting(failed=failed),
    )


def outlasted(scene: Scene, how: str) -> Text:
    """A few ranks that still run after most have finished."""
    culprits = the_ranks(scene.culprits)
    has = verb(scene.culprits, "has", "have")
    return text(
        f"{scene.they} {scene.are} still running after {scene.rest} finished: {how}, and "
        f"{culprits} {scene.are} in {scene.where}.",
        f"Most ranks are past it, so {culprits} {has} more steps than the others.",
        scene.seen(),
    )


def left_loop(scene: Scene, entered: str, loop: Site, *, failed: bool = False) -> Text:
    """Ranks past a loop that the others are in. entered: the call that they are in."""
    at = f"in {entered}{scene.here}" if entered else f"at {code_line(scene.site)}"
    inside = verb(scene.others, "was", "were") if failed else verb(scene.others, "is", "are")
    return text(
        f"{scene.they} finished early: {scene.it} left the loop at {code_line(loop)} and "
        f"{scene.are} {at}{scene.awaited(scene.where, failed=failed)}",
        f"{scene.they} {scene.are} past the loop at {place_in_code(loop)}, at "
        f"{place_in_code(scene.site)}.",
        located(f"{capital(scene.rest)} {inside} still in it,", scene.other_site)
        if scene.others
        else "",
    )


def missing_peer(
    scene: Scene, call: str, doing: str, counts: tuple[int, int] | None = None
) -> Text:
    """A point-to-point call (``send`` or ``recv``) without its counterpart.

    counts: of a recv from any source, the messages of each culprit and of each other rank.
    """
    wanted = "recv" if call == "send" else "send"
    fewer = (
        f"It accepts a message from any rank: recently {the_ranks(scene.culprits)} "
        f"{verb(scene.culprits, 'has', 'have each')} sent {counts[0]}, and each other rank "
        f"{counts[1]}."
        if counts
        else ""
    )
    return text(
        f"{scene.they} never posted the {wanted} for {scene.rest}'s {call}{scene.there} in "
        f"{scene.where}: {doing}.",
        fewer,
        scene.seen(),
        scene.waiting(),
    )


def unmatched(scene: Scene, call: str, theirs: str, *, new: bool) -> Text:
    """A point-to-point call that no rank matches. new: its rank made none there before."""
    article = "an" if call.startswith("i") else "a"
    return text(
        f"{scene.they} posted {article} {call}{scene.here} in {scene.where} that no rank matches: "
        f"{scene.rest} {verb(scene.others, 'is', 'are')} in {theirs}{scene.there}.",
        f"{capital(scene.it)} never made this call here before, and the others do as before."
        if new
        else "",
        scene.seen(),
        scene.waiting(),
    )


def init_incomplete(scene: Scene, doing: str) -> Text:
    """Ranks missing from a call that all ranks have to make."""
    if not scene.culprits:
        return text(
            f"All ranks are in {scene.where}, but it does not complete.",
            scene.waiting(),
            "No rank is missing: the network between them may be at fault.",
        )
    return text(
        f"{scene.they} did not call {scene.where}: {doing}{scene.awaited()}",
        scene.seen(),
        scene.waiting(),
    )


def _every_member(has: str, *, alike: bool) -> str:
    """``Every member has entered it with the same signature``."""
    how = "with the same signature" if alike else "as far as is known"
    return f"Every member has {has} it {how}"


def stuck(  # noqa: PLR0913 (by keyword)
    members: Ranks, where: str, site: Site | None, *, alike: bool, untimed: bool, first: bool
) -> Text:
    """All members are in a collective that does not complete.

    untimed: it is not known if their devices have reached it. first: it is the first of its group
    on NCCL, which connects the ranks in it.
    """
    whose = "no rank stands out" if untimed or first else "no rank is to blame"
    known = ""
    if first:
        known = "It is the first collective of its group, in which NCCL connects the ranks."
    elif untimed:
        known = (
            "It is not known if their devices have reached it: earlier work may be stuck on one "
            "of them."
        )
    return text(
        f"{capital(the_ranks(members))} all entered {where}, but it does not complete; {whose}.",
        f"{_every_member('entered', alike=alike)}, so no rank is missing from it.",
        known,
        located("They wait", site),
    )


def connecting(members: Ranks, op: str, site: Site | None) -> Text:
    """Ranks that wait for each other in calls that return once NCCL has connected them."""
    return text(
        f"{capital(the_ranks(members))} wait for each other in {op}, and none of their calls has "
        "returned; no rank stands out.",
        "On NCCL they return once the ranks are connected: their next calls are not known.",
        located("They are", site),
    )


def stuck_beside(scene: Scene, *, alike: bool, before: bool) -> Text:
    """A collective that is complete on the devices of the others only."""
    why = "its device has not reached it" if before else "its device does not finish it"
    return text(
        f"{scene.where} is complete on {scene.rest}, but not on {the_ranks(scene.culprits)}: "
        f"{why}.",
        f"{_every_member('entered', alike=alike)}, so no rank is missing from it.",
        scene.seen(),
    )


def all_before(members: Ranks, where: str, site: Site | None, *, alike: bool) -> Text:
    """A collective that all have enqueued and that no device has reached."""
    return text(
        f"{capital(the_ranks(members))} have all enqueued {where}, but none of their devices has "
        "reached it; no rank stands out.",
        f"{_every_member('enqueued', alike=alike)}: earlier work on the devices does not finish.",
        located("They enqueued it", site),
    )


def cross_wired(
    culprits: Ranks, claims: Sequence[tuple[Ranks, Ranks]], where: str, site: Site | None
) -> Text:
    """Groups that were created in different orders. claims: (ranks, members of their group)."""
    who = f" ({the_ranks(culprits)} used another order)" if culprits else ""
    made = ", ".join(
        f"{the_ranks(ranks)} created the group of {the_ranks(members)}" for ranks, members in claims
    )
    return text(
        f"The groups were not created in the same order on all ranks{who}: under one name {made}; "
        f"{where} does not complete.",
        ONE_NAME,
        located("The stuck call is", site),
    )


def frozen(scene: Scene, activity: Activity) -> Text:
    """All members are in a collective, and a few of their processes do not run."""
    return text(
        f"{scene.they} entered {scene.where} and cannot complete it: "
        f"{now(scene.culprits, activity)}{scene.awaited()}",
        "Every member has entered it, so no rank is missing from it.",
        scene.seen(),
        scene.waiting(),
    )


def cycle(parts: Sequence[tuple[Ranks, str, Site | None]], strange: Ranks = ()) -> Text:
    """Ranks that wait for each other in different wait points.

    strange: ranks that did not do so before.
    """
    everyone = {rank for ranks, _, _ in parts for rank in ranks}
    history = ""
    if strange:
        history = (
            f"{capital(the_ranks(strange))} {verb(strange, 'has', 'have')} not made these "
            "calls in this order before; all others have."
        )
    where = ", ".join(
        f"{the_ranks(ranks)} in {wait_point}{at_line(site)}" for ranks, wait_point, site in parts
    )
    return text(
        f"{capital(the_ranks(everyone))} wait for each other: {where}.",
        "Each waits in a call that another of them makes only after its current one.",
        history,
        *(side(ranks, site) for ranks, _, site in parts[:4]),
    )
