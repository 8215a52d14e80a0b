"""The sentences on ranks that entered different things at one place."""

from __future__ import annotations

from collections.abc import Sequence

from hangwatch.diagnosis.facts.signatures import Differs, Misfit, Split
from hangwatch.diagnosis.text.phrases import MAX_TOLD, WIRED, Ranks, at_line, place_in_code, within
from hangwatch.diagnosis.text.wording import Scene, Text, sentences
from hangwatch.model.calls import Site
from hangwatch.text import capital, code_line, the_ranks, verb

MAX_PAIRS = 3


def subset(scene: Scene, went_on: str) -> Text:
    """A few ranks in a collective that the others never enter."""
    headline = (
        f"Only {the_ranks(scene.culprits)} entered {scene.where}{scene.here}: "
        f"{the_ranks(scene.others)} {went_on}."
    )
    return Text(headline, sentences(*_both(scene)))


def elsewhere(scene: Scene, op: str) -> str:
    """Where those are who do not enter a collective: before it or past it, nobody may know."""
    return f"{verb(scene.others, 'is', 'are')} in {op}{scene.there}"


def other_op(scene: Scene, mine: Sequence[tuple[Ranks, str]], theirs: str) -> Text:
    """Different collectives at one place: what culprits entered each, and what the others did."""
    told = [f"{the_ranks(r)} entered {op}{scene.at(r, scene.site)}" for r, op in mine[:MAX_TOLD]]
    there, end = scene.there, ""
    if _in_one_call(scene) and len(mine) == 1:
        told = [f"{the_ranks(scene.culprits)} entered {mine[0][1]}{within(scene.site)}"]
        there, end = within(scene.other_site), f", all{scene.here}"
    headline = (
        f"{capital(', '.join(told))} where {the_ranks(scene.others)} "
        f"entered {theirs}{there}, as {scene.where}{end}."
    )
    return Text(headline, sentences(*_both(scene)))


def _in_one_call(scene: Scene) -> bool:
    """Whether both are in one call of a package, which they came to from one line."""
    mine, theirs = scene.site, scene.other_site
    if mine is None or theirs is None or mine.call is None or theirs.call is None:
        return False
    return mine == theirs and mine.call.function == theirs.call.function


def out_of_step(scene: Scene, shift: int, later: str) -> Text:
    """A rank that left calls out (or made more) and got stuck only later."""
    return Text(
        _since(scene, shift, known=True), sentences(*_both(scene), f"It shows only now. {later}")
    )


def either(text: Text, ranks: Ranks) -> Text:
    """What stands of two sides, of which nothing tells who left the common program."""
    note = (
        f"One of {the_ranks(ranks)} left the common program: what is known of their calls does "
        "not tell which."
    )
    return Text(text.headline, sentences(text.explanation, note))


def in_no_order(text: Text) -> Text:
    """What stands of ranks that go over a set, each in an order of its own."""
    note = "All go over a set, whose order is another in each process: any of them may be ahead."
    return Text(text.headline, sentences(text.explanation, note))


def as_usual(text: Text, others: Ranks) -> Text:
    """The text of a finding against ranks whose call is unlike all others of its line."""
    note = f"All other calls of that line that are known are like that of {the_ranks(others)}."
    return Text(text.headline, sentences(text.explanation, note))


def ended_before(scene: Scene, shows: str, *, outlasts: bool) -> Text:
    """Ranks that came to the end of their program before the others did, or (outlasts) after."""
    it = verb(scene.culprits, "it", "they")
    if outlasts:
        headline = (
            f"{scene.they} {verb(scene.culprits, 'goes', 'go')} on to {scene.where}"
            f"{scene.here} where {the_ranks(scene.others)} came to the end of the program."
        )
    else:
        headline = (
            f"{scene.they} finished early: {it} came to the end of the program where "
            f"{the_ranks(scene.others)} {verb(scene.others, 'goes', 'go')} on to {scene.where}"
            f"{scene.there}."
        )
    return Text(headline, sentences(*_both(scene), shows))


def other_way(scene: Scene, ops: tuple[str, str], shows: str) -> Text:
    """Ranks that made another call than the others did at that point of the program."""
    headline = (
        f"{scene.they} left the common program: {verb(scene.culprits, 'it', 'they')} made "
        f"{ops[0]}{scene.here}, where {the_ranks(scene.others)} made {ops[1]}"
        f"{scene.there}."
    )
    return Text(headline, sentences(*_both(scene), shows))


def other_groups(scene: Scene, calls: tuple[str, str], shows: str) -> Text:
    """Ranks that made another group than the others did there. calls: what each side called."""
    one_line = scene.site == scene.other_site
    here = "" if one_line else scene.here
    headline = (
        f"{scene.they} called {calls[0]}{here}, where {the_ranks(scene.others)} called "
        f"{calls[1]}{scene.there}."
    )
    alike = calls[0].partition(" ")[0] == calls[1].partition(" ")[0]
    why = WIRED if alike else "A group is made by all ranks of the job, also by those not in it."
    lines = [f"It is at {place_in_code(scene.site)}."] if one_line and scene.site else _both(scene)
    return Text(headline, sentences(*lines, why, shows))


def drifting(scene: Scene, shift: int, *, known: bool, even: bool) -> Text:
    """A rank that left calls out, or made more, in a job that still runs.

    known: it began there. even: as many ranks are on one side as on the other.
    """
    return Text(
        _since(scene, shift, known=known),
        sentences(
            *_both(scene),
            "Nothing is stuck yet. But since then calls that do not belong together are paired: "
            "results may be wrong, and the job will hang where the order of its calls changes.",
            f"There is no majority: {the_ranks(scene.others)} may have made them instead."
            if even
            else "",
        ),
    )


def unnoticed(scene: Scene, found: Split) -> Text:
    """One call of one line that ranks made with other tensors, and that went through."""
    parts = [f"{the_ranks(ranks)} with {what}" for what, ranks in found.parts[::-1]]
    headline = f"{capital(', '.join(parts))} entered {scene.where}{scene.here}."
    return Text(
        headline,
        sentences(*_both(scene)[:1], "Nothing is stuck yet, but the results may be wrong."),
    )


def _since(scene: Scene, shift: int, *, known: bool) -> str:
    count = abs(shift)
    calls = "one collective" if count == 1 else f"{count} collectives"
    has = verb(scene.culprits, "it has", "they have")
    how = f"{has} issued {calls} {'fewer' if shift > 0 else 'more'} than they"
    if known:
        it = verb(scene.culprits, "it", "they")
        how = f"{it} {f'left out {calls}' if shift > 0 else f'made {calls} more'} there"
    where = f"{scene.where}{at_line(scene.other_site if shift > 0 else scene.site)}"
    return (
        f"{scene.they} {verb(scene.culprits, 'is', 'are')} out of step with "
        f"{the_ranks(scene.others)} since {where if known else f'before {where}'}: {how}."
    )


def undecided(found: Split, where: str, sites: Sequence[tuple[Ranks, Site]]) -> Text:
    """A disagreement in which nothing tells who is wrong."""
    verb_ = "entered" if found.differs is Differs.OP else "came with"
    parts = [f"{the_ranks(ranks)} {verb_} {what}" for what, ranks in found.parts]
    return Text(
        f"{capital(', '.join(parts))}: {where}.",
        sentences(
            "There is no majority, and neither the source nor what came before tells which of "
            "them left the common program.",
            *(f"{capital(the_ranks(ranks))}: {place_in_code(site)}." for ranks, site in sites[:2]),
        ),
    )


def uneven_turns(scene: Scene, calls: tuple[str, str], loop: Site, known: Text) -> Text:
    """A loop that one side is in and the other has left. calls: what each of them is in."""
    return Text(
        f"{scene.they} {scene.are} in {calls[0]}{scene.here}, in the loop at {code_line(loop)} "
        f"that {the_ranks(scene.others)} {verb(scene.others, 'has', 'have')} left: "
        f"{verb(scene.others, 'it is', 'they are')} in {calls[1]}{scene.there}.",
        known.explanation,
    )


def two_threads(
    ranks: Ranks, sides: Sequence[tuple[Ranks, str]], where: str, site: Site | None
) -> Text:
    """A group that two threads of each rank use. sides: by the main thread, by another."""
    (main, mine), (beside, theirs) = sides
    return Text(
        f"{capital(the_ranks(ranks))} use one group from two threads each, and nothing orders "
        f"their calls: as {where}, {the_ranks(main)} entered {mine} from the main thread"
        f"{at_line(site)}, {the_ranks(beside)} entered {theirs} from another thread.",
        "No rank left the common program: in one group, calls have to come in one order.",
    )


def signature(scene: Scene, found: Split, by_cpp: Ranks = ()) -> Text:
    """One collective with tensors or roots that do not fit.

    by_cpp: the ranks whose call Python did not make, if others made theirs from Python.
    """
    culprits = set(scene.culprits)
    mine = [what for what, ranks in found.parts if set(ranks) <= culprits]
    rest = [f"{the_ranks(r)} with {what}" for what, r in found.parts if not set(r) <= culprits]
    headline = (
        f"{scene.they} entered {scene.where}{scene.here} with {' or '.join(mine)}, "
        f"{', '.join(rest)}."
    )
    here = f"{scene.they}: {place_in_code(scene.site)}." if scene.site else ""
    there = f"{capital(the_ranks(scene.others))}: {place_in_code(scene.other_site)}."
    inner = (
        f"{capital(the_ranks(by_cpp))} did not issue it from Python: it is a gradient bucket of "
        "DistributedDataParallel, a functional collective, or compiled code. So they are not in "
        "the same call of the program: one left a call out, or made one more."
    )
    return Text(
        headline,
        sentences(
            f"It needs the same {found.differs} on all its ranks.",
            here,
            there if by_cpp and scene.other_site else "",
            inner if by_cpp else "",
        ),
    )


def exchange(scene: Scene, pairs: Sequence[Misfit]) -> Text:
    """An exchange in which ranks send others more, or less, than these take."""
    theirs = f"those of {the_ranks(scene.others)}" if scene.others else "each other"
    told = [
        f"rank {pair.sender} sends {pair.sent} {pair.unit}{'' if pair.sent == 1 else 's'} to "
        + ("itself, and " if pair.sender == pair.receiver else f"rank {pair.receiver}, which ")
        + f"takes {pair.taken}"
        for pair in pairs[:MAX_PAIRS]
    ]
    more = f"; and {len(pairs) - MAX_PAIRS} pairs more" if len(pairs) > MAX_PAIRS else ""
    return Text(
        f"{scene.they} entered {scene.where}{scene.here} with sizes that do not fit "
        f"{theirs}: {'; '.join(told)}{more}.",
        sentences(
            "What one rank sends another has to be what that one takes.",
            "Nothing tells which of them is wrong."
            if len(scene.culprits) > 1
            else "No other pair is known not to fit.",
            f"{scene.they}: {place_in_code(scene.site)}." if scene.site else "",
        ),
    )


def _both(scene: Scene) -> list[str]:
    """The two lines."""
    sides = ((scene.culprits, scene.site), (scene.others, scene.other_site))
    return [
        f"{capital(the_ranks(ranks))}: {place_in_code(site)}."
        for side, line in sides
        for ranks, site in scene.lines(side, line)
    ]
