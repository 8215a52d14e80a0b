"""The headline and explanation of a finding on calls, messages or keys that do not match."""

from __future__ import annotations

from collections.abc import Sequence

from hangwatch.diagnosis.facts.signatures import Differs, Misfit, Split
from hangwatch.diagnosis.facts.stores import Setter
from hangwatch.diagnosis.text.phrases import (
    MAX_SHOWN,
    ONE_NAME,
    Ranks,
    at_line,
    place_in_code,
    within,
)
from hangwatch.diagnosis.text.wording import Scene, Text, located, side, text
from hangwatch.model.calls import Site
from hangwatch.text import capital, code_line, the_ranks, verb

MAX_PAIRS = 3


def subset(scene: Scene, went_on: str) -> Text:
    """A few ranks in a collective that the others never enter. went_on: what these do instead."""
    culprits = the_ranks(scene.culprits)
    return text(
        f"Only {culprits} entered {scene.where}{scene.here}; {scene.rest} {went_on}.", *_both(scene)
    )


def elsewhere(scene: Scene, op: str) -> str:
    """``is in all_reduce``, of ranks before or past a collective that they do not enter."""
    return f"{verb(scene.others, 'is', 'are')} in {op}{scene.there}"


def other_op(scene: Scene, mine: Sequence[tuple[Ranks, str]], theirs: str) -> Text:
    """Different collectives in one slot: those of the culprits, and that of the others."""
    parts = [f"{the_ranks(r)} entered {op}{scene.at(r, scene.site)}" for r, op in mine[:MAX_SHOWN]]
    there, both_in = scene.there, ""
    if _in_one_call(scene) and len(mine) == 1:
        parts = [f"{the_ranks(scene.culprits)} entered {mine[0][1]}{within(scene.site)}"]
        there, both_in = within(scene.other_site), f", both{scene.here}"
    return text(
        f"{capital(', '.join(parts))} as {scene.where}, but {scene.rest} entered {theirs}{there}"
        f"{both_in}.",
        *_both(scene),
    )


def _in_one_call(scene: Scene) -> bool:
    """Return True if both sides are in one call of a package that one line made."""
    mine, theirs = scene.site, scene.other_site
    if mine is None or theirs is None or mine.call is None or theirs.call is None:
        return False
    return mine == theirs and mine.call.function == theirs.call.function


def out_of_step(scene: Scene, shift: int, later: str) -> Text:
    """A rank that skipped calls, or made extra ones, and got stuck only later."""
    surfaced = f"The mismatch surfaced only now. {later}"
    return text(_since(scene, shift, known=True), *_both(scene), surfaced)


def either(known: Text, ranks: Ranks) -> Text:
    """The text on two sides, if it is not known which left the common sequence of calls."""
    one_of = f"One of {the_ranks(ranks)}" if len(ranks) > 1 else f"Rank {ranks[0]} or another rank"
    return known.adding(
        f"{one_of} left the common sequence of calls: what is known of their calls does not show "
        "which."
    )


def in_no_order(known: Text) -> Text:
    """The text on ranks that iterate over a set, each in its own order."""
    return known.adding(
        "All iterate over a set, whose order differs between processes: any of them may be ahead."
    )


def as_usual(known: Text, others: Ranks) -> Text:
    """The text on ranks whose call is unlike all others of its line."""
    return known.adding(f"All other known calls of that line are like that of {the_ranks(others)}.")


def ended_before(scene: Scene, shows: str, *, outlasts: bool) -> Text:
    """Ranks that reached the end of their program before the others did, or (outlasts) after."""
    if outlasts:
        headline = (
            f"{scene.they} continued with {scene.where}{scene.here}, but {scene.rest} reached the "
            "end of the program."
        )
    else:
        headline = (
            f"{scene.they} finished early: {scene.it} reached the end of the program, but "
            f"{scene.rest} continued with {scene.where}{scene.there}."
        )
    return text(headline, *_both(scene), shows)


def other_way(scene: Scene, ops: tuple[str, str], shows: str) -> Text:
    """Ranks that made a different call than the others at that point of the program."""
    return text(
        f"{scene.they} left the common sequence of calls: {scene.it} called {ops[0]}{scene.here}, "
        f"but {scene.rest} called {ops[1]}{scene.there}.",
        *_both(scene),
        shows,
    )


def other_groups(scene: Scene, calls: tuple[str, str], shows: str) -> Text:
    """Ranks that created a different group than the others there. calls: those of each side."""
    one_line = scene.site == scene.other_site
    here = "" if one_line else scene.here
    alike = calls[0].partition(" ")[0] == calls[1].partition(" ")[0]
    return text(
        f"{scene.they} called {calls[0]}{here}, but {scene.rest} called {calls[1]}{scene.there}.",
        *([located("The call is", scene.site)] if one_line and scene.site else _both(scene)),
        ONE_NAME if alike else "All ranks of the job have to create a group, members or not.",
        shows,
    )


def drifting(scene: Scene, shift: int, *, known: bool, even: bool) -> Text:
    """A rank that skipped calls, or made extra ones, in a job that still runs.

    known: it began there. even: there are as many ranks on one side as on the other.
    """
    return text(
        _since(scene, shift, known=known),
        *_both(scene),
        "Nothing is stuck yet, but since then calls that do not belong together are paired: "
        "results may be wrong, and the job will hang where the order of its calls changes.",
        f"It is a tie: it may be {scene.rest} that left the common sequence of calls."
        if even
        else "",
    )


def unnoticed(scene: Scene, split: Split) -> Text:
    """One call of one line that ranks made with different tensors, and that completed."""
    (what, ranks), *rest = split.parts[::-1]
    others = "".join(f", {the_ranks(some)} with {theirs}" for theirs, some in rest)
    return text(
        f"{capital(the_ranks(ranks))} entered {scene.where}{scene.here} with {what}{others}.",
        *_both(scene)[:1],
        "Nothing is stuck yet, but the results may be wrong.",
    )


def _since(scene: Scene, shift: int, *, known: bool) -> str:
    count = abs(shift)
    number, noun = ("one", "collective") if count == 1 else (str(count), "collectives")
    has = verb(scene.culprits, "it has", "they have")
    how = f"{has} issued {number} {'fewer' if shift > 0 else 'more'} {noun} than {scene.rest}"
    if known:
        did = f"skipped {number}" if shift > 0 else f"made {number} extra"
        how = f"{scene.it} {did} {noun} there"
    where = f"{scene.where}{at_line(scene.other_site if shift > 0 else scene.site)}"
    since = where if known else f"before {where}"
    return f"{scene.they} {scene.are} out of step with {scene.rest} since {since}: {how}."


def undecided(split: Split, where: str, sites: Sequence[tuple[Ranks, Site]]) -> Text:
    """A disagreement in which it is not known which ranks are wrong."""
    did, at = "passed", " to"
    if split.differs is Differs.OP:
        did, at = "entered", ", both as" if len(split.parts) == 2 else ", all as"  # noqa: PLR2004
    parts = [f"{the_ranks(ranks)} {did} {what}" for what, ranks in split.parts]
    return text(
        f"{capital(', '.join(parts))}{at} {where}.",
        "There is no majority, and neither the source nor the earlier calls show which of them "
        "left the common sequence of calls.",
        *(side(ranks, site) for ranks, site in sites[:2]),
    )


def uneven_turns(scene: Scene, calls: tuple[str, str], loop: Site, known: Text) -> Text:
    """A loop that one side is in and the other has left. calls: the one that each is in."""
    return Text(
        f"{scene.they} {scene.are} in {calls[0]}{scene.here}, in the loop at {code_line(loop)} "
        f"that {scene.rest} {verb(scene.others, 'has', 'have')} left for "
        f"{calls[1]}{scene.there}.",
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
        "No rank left the common sequence of calls: all ranks have to make the calls of one group "
        "in one order.",
    )


def signature(scene: Scene, split: Split, by_cpp: Ranks = ()) -> Text:
    """One collective with tensors or roots that do not match.

    by_cpp: the ranks that did not issue it from Python, if others did.
    """
    culprits = set(scene.culprits)
    mine = [what for what, ranks in split.parts if set(ranks) <= culprits]
    rest = [f"{the_ranks(r)} with {what}" for what, r in split.parts if not set(r) <= culprits]
    inner = (
        f"{capital(the_ranks(by_cpp))} did not issue it from Python: it is a gradient bucket of "
        "DistributedDataParallel, a functional collective, or compiled code. So they are not in "
        "the same call of the program: one of them skipped a call, or made an extra one."
    )
    return text(
        f"{scene.they} entered {scene.where}{scene.here} with {' or '.join(mine)}, "
        f"{', '.join(rest)}.",
        f"All ranks have to pass the same {split.differs}.",
        side(scene.culprits, scene.site),
        *((side(scene.others, scene.other_site), inner) if by_cpp else ()),
    )


def exchange(scene: Scene, pairs: Sequence[Misfit]) -> Text:
    """An exchange in which ranks send more, or less, than their peers expect."""
    theirs = f"those of {scene.rest}" if scene.others else "each other"
    shown = [
        f"rank {pair.sender} sends {pair.sent} {pair.unit}{'' if pair.sent == 1 else 's'} to "
        + ("itself, and " if pair.sender == pair.receiver else f"rank {pair.receiver}, which ")
        + f"expects {pair.taken}"
        for pair in pairs[:MAX_PAIRS]
    ]
    more = f"; and {len(pairs) - MAX_PAIRS} more pairs" if len(pairs) > MAX_PAIRS else ""
    return text(
        f"{scene.they} entered {scene.where}{scene.here} with sizes that do not match "
        f"{theirs}: {'; '.join(shown)}{more}.",
        "A rank has to expect as much as its peer sends.",
        "Nothing shows which of them is wrong."
        if len(scene.culprits) > 1
        else "No other pair is known to mismatch.",
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
    """A send and a recv between two ranks that do not match.

    first: the rank at scene.site; sends: it sends, and does not receive. names: the tag or the
    group of its call, and of the other rank's. leap: the step of its tags before, and now.
    """
    second = next(rank for rank in (*scene.others, *scene.culprits) if rank != first)
    does, theirs = ("sends", "receives") if sends else ("receives", "sends")
    return text(
        f"Rank {first} {does} with {names[0]}{at_line(scene.site)} what rank {second} {theirs} "
        f"with {names[1]}{at_line(scene.other_site)}.",
        "A send and a recv match only with the same tag and in the same group.",
        f"The tags of rank {first} went up by {leap[0]} each time before, and by {leap[1]} now."
        if leap
        else "",
        located(f"Rank {first} is", scene.site),
        located(f"Rank {second} is", scene.other_site),
    )


def one_direction(scene: Scene, *, sends: bool, posted: bool) -> Text:
    """Ranks that wait for each other, and all send or all receive.

    posted: some have posted their part of other messages, with other tags.
    """
    mine, missing = ("send to", "receive") if sends else ("receive from", "send")
    does = f"what they {missing} has another tag" if posted else f"none of them {missing}s"
    lines = list(dict.fromkeys(filter(None, (scene.site, scene.other_site))))
    at = at_line(scene.site) if len(lines) == 1 else ""
    count = "Both" if len(scene.culprits) == 2 else "All"  # noqa: PLR2004 (a pair)
    return text(
        f"{scene.they} wait to {mine} each other{at}, and {does}.",
        f"{count} {'send' if sends else 'receive'} in {scene.where}.",
        *([scene.seen()] if len(lines) == 1 else [f"{place_in_code(site)}." for site in lines]),
    )


def never_set(scene: Scene, setter: Setter) -> Text:
    """Ranks that should have set a key, by their earlier calls."""
    did = "did not set" if setter.by_form else f"did not reach {code_line(setter.site)} for"
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
    what = "Keys of this form" if setter.by_form else "Keys"
    return (
        f"{what} were set at {place_in_code(setter.site)} by {', by '.join(makers)}; the last one "
        f"was `{setter.key}`."
    )


def asks_for_another(scene: Scene, setter: Setter) -> Text:
    """Ranks that ask for another key than the others did in the same iteration."""
    wait = verb(scene.culprits, "waits", "wait")
    return text(
        f"{scene.they} {wait} for {scene.where}, but {scene.rest} asked for `{setter.key}`, "
        "which was set.",
        _set_before(setter),
        scene.seen(),
    )


def one_more(scene: Scene, setter: Setter) -> Text:
    """Ranks that have set keys of that form and went on, while others wait for one more."""
    return text(
        f"{capital(scene.rest)} {verb(scene.others, 'waits', 'wait')} for {scene.where}, but "
        f"{the_ranks(scene.culprits)} set keys of this form only up to `{setter.key}` and went on.",
        _set_before(setter),
        "One side set too few keys, or the other waits for one too many.",
        scene.seen(),
        scene.waiting(),
    )


def set_by_no_rank(scene: Scene) -> Text:
    """Ranks that all wait for keys, none of which is known to set keys of that form."""
    return text(
        f"{scene.they} {verb(scene.culprits, 'waits', 'wait')} for {scene.where}, and no rank is "
        "working.",
        "No rank was seen to set a key of this form.",
        scene.seen(),
    )


def _both(scene: Scene) -> list[str]:
    """The lines of the culprits and of the others."""
    culprits = scene.lines(scene.culprits, scene.site)
    return [side(*at) for at in (*culprits, *scene.lines(scene.others, scene.other_site))]
