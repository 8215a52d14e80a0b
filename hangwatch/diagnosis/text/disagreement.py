"""The sentences on ranks whose calls, messages or keys do not match."""

from __future__ import annotations

from collections.abc import Sequence

from hangwatch.diagnosis.facts.signatures import Differs, Misfit, Split
from hangwatch.diagnosis.facts.stores import Setter
from hangwatch.diagnosis.text.phrases import MAX_SHOWN, WIRED, Ranks, at_line, place_in_code, within
from hangwatch.diagnosis.text.wording import Scene, Text, located, side, text
from hangwatch.model.calls import Site
from hangwatch.text import capital, code_line, the_ranks, verb

MAX_PAIRS = 3


def subset(scene: Scene, went_on: str) -> Text:
    """A few ranks in a collective that the others never enter."""
    culprits = the_ranks(scene.culprits)
    return text(
        f"Only {culprits} entered {scene.where}{scene.here}: {scene.rest} {went_on}.", *_both(scene)
    )


def elsewhere(scene: Scene, op: str) -> str:
    """``is in all_reduce``, of ranks that do not enter a collective: before it or past it."""
    return f"{verb(scene.others, 'is', 'are')} in {op}{scene.there}"


def other_op(scene: Scene, mine: Sequence[tuple[Ranks, str]], theirs: str) -> Text:
    """Different collectives at one place: those of the culprits, and that of the others."""
    parts = [f"{the_ranks(r)} entered {op}{scene.at(r, scene.site)}" for r, op in mine[:MAX_SHOWN]]
    there, end = scene.there, ""
    if _in_one_call(scene) and len(mine) == 1:
        parts = [f"{the_ranks(scene.culprits)} entered {mine[0][1]}{within(scene.site)}"]
        there, end = within(scene.other_site), f", all{scene.here}"
    return text(
        f"{capital(', '.join(parts))} where {scene.rest} entered {theirs}{there}, as "
        f"{scene.where}{end}.",
        *_both(scene),
    )


def _in_one_call(scene: Scene) -> bool:
    """True if both are in one call of a package, which they came to from one line."""
    mine, theirs = scene.site, scene.other_site
    if mine is None or theirs is None or mine.call is None or theirs.call is None:
        return False
    return mine == theirs and mine.call.function == theirs.call.function


def out_of_step(scene: Scene, shift: int, later: str) -> Text:
    """A rank that left calls out (or made more) and got stuck only later."""
    return text(_since(scene, shift, known=True), *_both(scene), f"It shows only now. {later}")


def either(known: Text, ranks: Ranks) -> Text:
    """The text on two sides, of which it is not known which left the common program."""
    return known.adding(
        f"One of {the_ranks(ranks)} left the common program: what is known of their calls does "
        "not tell which."
    )


def in_no_order(known: Text) -> Text:
    """The text on ranks that go over a set, each in an order of its own."""
    return known.adding(
        "All go over a set, whose order is another in each process: any of them may be ahead."
    )


def as_usual(known: Text, others: Ranks) -> Text:
    """The text of a finding against ranks whose call is unlike all others of its line."""
    return known.adding(
        f"All other calls of that line that are known are like that of {the_ranks(others)}."
    )


def ended_before(scene: Scene, shows: str, *, outlasts: bool) -> Text:
    """Ranks that came to the end of their program before the others did, or (outlasts) after."""
    if outlasts:
        headline = (
            f"{scene.they} {verb(scene.culprits, 'goes', 'go')} on to {scene.where}{scene.here} "
            f"where {scene.rest} came to the end of the program."
        )
    else:
        headline = (
            f"{scene.they} finished early: {scene.it} came to the end of the program where "
            f"{scene.rest} {verb(scene.others, 'goes', 'go')} on to {scene.where}{scene.there}."
        )
    return text(headline, *_both(scene), shows)


def other_way(scene: Scene, ops: tuple[str, str], shows: str) -> Text:
    """Ranks that made another call than the others did at that point of the program."""
    return text(
        f"{scene.they} left the common program: {scene.it} made {ops[0]}{scene.here}, where "
        f"{scene.rest} made {ops[1]}{scene.there}.",
        *_both(scene),
        shows,
    )


def other_groups(scene: Scene, calls: tuple[str, str], shows: str) -> Text:
    """Ranks that made another group than the others did there. calls: those of each side."""
    one_line = scene.site == scene.other_site
    here = "" if one_line else scene.here
    alike = calls[0].partition(" ")[0] == calls[1].partition(" ")[0]
    return text(
        f"{scene.they} called {calls[0]}{here}, where {scene.rest} called {calls[1]}{scene.there}.",
        *([located("It is", scene.site)] if one_line and scene.site else _both(scene)),
        WIRED if alike else "A group is made by all ranks of the job, also by those not in it.",
        shows,
    )


def drifting(scene: Scene, shift: int, *, known: bool, even: bool) -> Text:
    """A rank that left calls out, or made more, in a job that still runs.

    known: it began there. even: as many ranks are on one side as on the other.
    """
    return text(
        _since(scene, shift, known=known),
        *_both(scene),
        "Nothing is stuck yet. But since then calls that do not belong together are paired: "
        "results may be wrong, and the job will hang where the order of its calls changes.",
        f"There is no majority: {scene.rest} may have made them instead." if even else "",
    )


def unnoticed(scene: Scene, split: Split) -> Text:
    """One call of one line that ranks made with other tensors, and that went through."""
    parts = [f"{the_ranks(ranks)} with {what}" for what, ranks in split.parts[::-1]]
    return text(
        f"{capital(', '.join(parts))} entered {scene.where}{scene.here}.",
        *_both(scene)[:1],
        "Nothing is stuck yet, but the results may be wrong.",
    )


def _since(scene: Scene, shift: int, *, known: bool) -> str:
    count = abs(shift)
    calls = "one collective" if count == 1 else f"{count} collectives"
    has = verb(scene.culprits, "it has", "they have")
    how = f"{has} issued {calls} {'fewer' if shift > 0 else 'more'} than they"
    if known:
        how = f"{scene.it} {f'left out {calls}' if shift > 0 else f'made {calls} more'} there"
    where = f"{scene.where}{at_line(scene.other_site if shift > 0 else scene.site)}"
    since = where if known else f"before {where}"
    return f"{scene.they} {scene.are} out of step with {scene.rest} since {since}: {how}."


def undecided(split: Split, where: str, sites: Sequence[tuple[Ranks, Site]]) -> Text:
    """A disagreement of which it is not known who is wrong."""
    did = "entered" if split.differs is Differs.OP else "came with"
    parts = [f"{the_ranks(ranks)} {did} {what}" for what, ranks in split.parts]
    return text(
        f"{capital(', '.join(parts))}: {where}.",
        "There is no majority, and neither the source nor what came before tells which of "
        "them left the common program.",
        *(side(ranks, site) for ranks, site in sites[:2]),
    )


def uneven_turns(scene: Scene, calls: tuple[str, str], loop: Site, known: Text) -> Text:
    """A loop that one side is in and the other has left. calls: the one that each is in."""
    return Text(
        f"{scene.they} {scene.are} in {calls[0]}{scene.here}, in the loop at {code_line(loop)} "
        f"that {scene.rest} {verb(scene.others, 'has', 'have')} left: "
        f"{verb(scene.others, 'it is', 'they are')} in {calls[1]}{scene.there}.",
        known.explanation,
    )


def two_threads(
    ranks: Ranks, sides: Sequence[tuple[Ranks, str]], where: str, site: Site | None
) -> Text:
    """A group that two threads of each rank use. sides: by the main thread, by another."""
    (main, mine), (other, theirs) = sides
    return Text(
        f"{capital(the_ranks(ranks))} use one group from two threads each, and nothing orders "
        f"their calls: as {where}, {the_ranks(main)} entered {mine} from the main thread"
        f"{at_line(site)}, {the_ranks(other)} entered {theirs} from another thread.",
        "No rank left the common program: in one group, calls have to come in one order.",
    )


def signature(scene: Scene, split: Split, by_cpp: Ranks = ()) -> Text:
    """One collective with tensors or roots that do not fit.

    by_cpp: the ranks whose call Python did not make, if others made theirs from Python.
    """
    culprits = set(scene.culprits)
    mine = [what for what, ranks in split.parts if set(ranks) <= culprits]
    rest = [f"{the_ranks(r)} with {what}" for what, r in split.parts if not set(r) <= culprits]
    inner = (
        f"{capital(the_ranks(by_cpp))} did not issue it from Python: it is a gradient bucket of "
        "DistributedDataParallel, a functional collective, or compiled code. So they are not in "
        "the same call of the program: one left a call out, or made one more."
    )
    return text(
        f"{scene.they} entered {scene.where}{scene.here} with {' or '.join(mine)}, "
        f"{', '.join(rest)}.",
        f"It needs the same {split.differs} on all its ranks.",
        side(scene.culprits, scene.site),
        *((side(scene.others, scene.other_site), inner) if by_cpp else ()),
    )


def exchange(scene: Scene, pairs: Sequence[Misfit]) -> Text:
    """An exchange in which ranks send others more, or less, than these take."""
    theirs = f"those of {scene.rest}" if scene.others else "each other"
    shown = [
        f"rank {pair.sender} sends {pair.sent} {pair.unit}{'' if pair.sent == 1 else 's'} to "
        + ("itself, and " if pair.sender == pair.receiver else f"rank {pair.receiver}, which ")
        + f"takes {pair.taken}"
        for pair in pairs[:MAX_PAIRS]
    ]
    more = f"; and {len(pairs) - MAX_PAIRS} pairs more" if len(pairs) > MAX_PAIRS else ""
    return text(
        f"{scene.they} entered {scene.where}{scene.here} with sizes that do not fit "
        f"{theirs}: {'; '.join(shown)}{more}.",
        "What one rank sends another has to be what that one takes.",
        "Nothing tells which of them is wrong."
        if len(scene.culprits) > 1
        else "No other pair is known not to fit.",
        side(scene.culprits, scene.site),
    )


def two_names(
    scene: Scene,
    first: int,
    names: Sequence[str],
    leap: tuple[int, int] | None,
    *,
    sends: bool,
) -> Text:
    """A send and a recv between two ranks that are not of one message.

    first: the rank that is at scene.site, which sends or does not; names: the tag or the group
    of its call, and of the other one's. leap: by how much its tags went up before, and now.
    """
    second = next(rank for rank in (*scene.others, *scene.culprits) if rank != first)
    does, theirs = ("sends", "receives") if sends else ("receives", "sends")
    return text(
        f"Rank {first} {does} with {names[0]}{at_line(scene.site)} what rank {second} {theirs} "
        f"with {names[1]}{at_line(scene.other_site)}.",
        "A send and a recv are of one message only with the same tag and in the same group.",
        f"The tags of rank {first} went up by {leap[0]} each time before, and by {leap[1]} now."
        if leap
        else "",
        located(f"Rank {first} is", scene.site),
        located(f"Rank {second} is", scene.other_site),
    )


def one_direction(scene: Scene, *, sends: bool, posted: bool) -> Text:
    """Ranks of which each waits for the next one, and all send or all receive.

    posted: some have made their part of other messages, with other tags.
    """
    mine, missing = ("send", "receives") if sends else ("receive", "sends")
    does = f"what it {missing} has another tag" if posted else f"none of them {missing}"
    lines = list(dict.fromkeys(filter(None, (scene.site, scene.other_site))))
    at = at_line(scene.site) if len(lines) == 1 else ""
    count = "Both" if len(scene.culprits) == 2 else "All"  # noqa: PLR2004 (a pair)
    return text(
        f"{scene.they} wait to {mine}{at}, each for another of them, and {does}.",
        f"{count} are in a call of one direction in {scene.where}.",
        *([scene.seen()] if len(lines) == 1 else [f"{place_in_code(site)}." for site in lines]),
    )


def never_set(scene: Scene, setter: Setter) -> Text:
    """Ranks that should have set a key, by what they did before."""
    did = "did not set" if setter.by_form else f"did not come by {code_line(setter.site)} for"
    return text(
        f"{scene.they} {did} {scene.where}{scene.awaited()}",
        _set_before(setter),
        scene.seen() if code_line(scene.site) != code_line(scene.other_site) else "",
        scene.waiting(),
    )


def _set_before(setter: Setter) -> str:
    """The line that set keys of that form before, and how often."""
    alike: dict[int, list[int]] = {}
    for rank, count in sorted(setter.counts.items()):
        alike.setdefault(count, []).append(rank)
    makers = [
        f"{the_ranks(ranks)} ({'once' if count == 1 else f'{count} times'})"
        for count, ranks in sorted(alike.items())
    ]
    what = "Such keys were" if setter.by_form else "Keys were"
    return (
        f"{what} set at {place_in_code(setter.site)} by {', by '.join(makers)}: the last one was "
        f"`{setter.key}`."
    )


def asks_for_another(scene: Scene, setter: Setter) -> Text:
    """Ranks that ask for a key unlike the one that others asked for in the same turn."""
    wait = verb(scene.culprits, "waits", "wait")
    return text(
        f"{scene.they} {wait} for {scene.where}, where {scene.rest} asked for `{setter.key}`, "
        "which was set.",
        _set_before(setter),
        scene.seen(),
    )


def one_more(scene: Scene, setter: Setter) -> Text:
    """Ranks that have set keys of that form and gone on, while others wait for one more."""
    wait, have = verb(scene.others, "waits", "wait"), verb(scene.culprits, "has", "have")
    return text(
        f"{capital(scene.rest)} {wait} for {scene.where}, and {the_ranks(scene.culprits)} {have} "
        f"set such keys as far as `{setter.key}` and gone on.",
        _set_before(setter),
        "One side has set too few, or the other one asks for one too many.",
        scene.seen(),
        scene.waiting(),
    )


def set_by_nobody(scene: Scene) -> Text:
    """Ranks that all wait for keys, and none of them is known to set keys of that form."""
    return text(
        f"{scene.they} {verb(scene.culprits, 'waits', 'wait')} for {scene.where}, and no rank is "
        "at work.",
        "It was not seen that a rank has set a key of that form.",
        scene.seen(),
    )


def _both(scene: Scene) -> list[str]:
    """The lines of the culprits and of the others."""
    culprits = scene.lines(scene.culprits, scene.site)
    return [side(*at) for at in (*culprits, *scene.lines(scene.others, scene.other_site))]
