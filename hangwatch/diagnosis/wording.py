"""The sentences of a verdict: a headline, and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangwatch.diagnosis.case import Text
from hangwatch.diagnosis.phrases import (
    at_line,
    capital,
    ended,
    line,
    now,
    place_in_code,
    short_file,
    spot_text,
    the_ranks,
    verb,
)
from hangwatch.diagnosis.signatures import Differs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangwatch.diagnosis.activity import Activity
    from hangwatch.diagnosis.endings import Ending
    from hangwatch.diagnosis.signatures import Split
    from hangwatch.diagnosis.source import Guard, LeftLoop
    from hangwatch.types import Site

Ranks = tuple[int, ...]


def never_entered(
    culprits: Ranks, victims: Ranks, where: str, activity: Activity, victim_site: Site | None
) -> Text:
    """A living rank that others wait for."""
    headline = (
        f"{capital(the_ranks(culprits))} never entered {where}: "
        f"{now(culprits, activity)}{waiting(victims, culprits)}"
    )
    return Text(
        headline,
        _sentences(
            activity.site
            and f"{capital(the_ranks(culprits))} {verb(culprits, 'is', 'are')} at "
            f"{place_in_code(activity.site)}.",
            activity.worker_site
            and f"Its data worker {activity.worker} is at {place_in_code(activity.worker_site)}.",
            _they_wait(victims, victim_site),
        ),
    )


def unseen(culprits: Ranks, victims: Ranks, where: str, why: Sequence[str]) -> Text:
    """Ranks that nothing is known of."""
    headline = (
        f"{capital(the_ranks(culprits))} never entered {where}, and "
        f"{verb(culprits, 'is', 'are')} not seen{waiting(victims, culprits)}"
    )
    return Text(
        headline,
        _sentences(
            f"Nothing is known of {the_ranks(culprits)}: "
            f"{verb(culprits, 'it', 'they')} may wait for something in turn.",
            *(f"{capital(text)}." for text in why[:2]),
        ),
    )


def died(culprits: Ranks, victims: Ranks, where: str, end: Ending, *, failed: bool) -> Text:
    """A rank that raised, was killed or was lost."""
    headline = f"{capital(the_ranks(culprits))} {ended(end)}"
    if victims and where:
        headline += (
            f"; {the_ranks(victims)} {'failed after it' if failed else 'wait for it'} in {where}"
            if len(victims) > 1 or failed
            else f"; {the_ranks(victims)} waits for it in {where}"
        )
    site = end.exception.site if end.exception else None
    return Text(
        f"{headline}.",
        _sentences(
            site and f"It was raised at {place_in_code(site)}.",
            end.in_shutdown
            and "Its program had come to its end: the interpreter was shutting down.",
            victims
            and f"{capital(the_ranks(victims))} {verb(victims, 'is a victim', 'are victims')}"
            ": whatever they report comes after this.",
        ),
    )


def finished(
    culprits: Ranks, victims: Ranks, where: str, how: str, victim_site: Site | None
) -> Text:
    """A rank that came to its end while others go on."""
    headline = (
        f"{capital(the_ranks(culprits))} finished early: {how}{waiting(victims, culprits, where)}"
    )
    return Text(
        headline,
        _sentences(
            f"{capital(the_ranks(culprits))} will enter no more collectives, so the others wait for "
            "ever.",
            _they_wait(victims, victim_site),
        ),
    )


def outlasted(
    culprits: Ranks, finished_ranks: Ranks, where: str, how: str, site: Site | None
) -> Text:
    """A few ranks that go on when most have come to their end."""
    headline = (
        f"{capital(the_ranks(culprits))} {verb(culprits, 'goes', 'go')} on after "
        f"{the_ranks(finished_ranks)} finished: {how}, and {the_ranks(culprits)} "
        f"{verb(culprits, 'waits', 'wait')} for {verb(finished_ranks, 'it', 'them')} in {where}."
    )
    return Text(
        headline,
        _sentences(
            f"Most members are at their end, so {the_ranks(culprits)} "
            f"{verb(culprits, 'has', 'have')} more steps than the others.",
            _they_wait(culprits, site),
        ),
    )


def left_loop(
    culprits: Ranks,
    victims: Ranks,
    where: str,
    entered: str,
    sites: tuple[Site | None, Site | None],
    loop: LeftLoop,
) -> Text:
    """A rank whose loop ended before that of the others."""
    site, victim_site = sites
    now = f"in {entered}{at_line(site)}" if entered else f"at {line(site)}"
    headline = (
        f"{capital(the_ranks(culprits))} finished early: {verb(culprits, 'it', 'they')} left the "
        f"loop at {short_file(loop.file)}:{loop.line} and {verb(culprits, 'is', 'are')} {now}"
        f"{waiting(victims, culprits, where)}"
    )
    return Text(
        headline,
        _sentences(
            f"{capital(the_ranks(culprits))} {verb(culprits, 'is', 'are')} past the loop "
            f"`{loop.text}`, at {place_in_code(site)}.",
            victim_site
            and f"{capital(the_ranks(victims))} {verb(victims, 'is', 'are')} still in it, "
            f"at {place_in_code(victim_site)}.",
        ),
    )


def subset(
    culprits: Ranks,
    others: Ranks,
    where: str,
    entered: str,
    sites: tuple[Site | None, Site | None],
    guard: Guard | None,
    went_on: str,
) -> Text:
    """A few ranks in a collective that the others never enter."""
    site, other_site = sites
    headline = (
        f"Only {the_ranks(culprits)} entered {where}{at_line(site)}: {the_ranks(others)} {went_on}."
    )
    return Text(
        headline,
        _sentences(
            guard is not None and _guarded(culprits, others, guard),
            site
            and f"{capital(the_ranks(culprits))} {verb(culprits, 'is', 'are')} in {entered} at "
            f"{place_in_code(site)}.",
            other_site
            and f"{capital(the_ranks(others))} {verb(others, 'is', 'are')} at "
            f"{place_in_code(other_site)}.",
        ),
    )


def _guarded(culprits: Ranks, others: Ranks, guard: Guard) -> str:
    took = f"`{guard.text}` at {short_file(guard.file)}:{guard.line}"
    if guard.on_rank:
        return f"{capital(the_ranks(culprits))} took {took}; {the_ranks(others)} did not."
    return f"{verb(culprits, 'It stands', 'They stand')} under {took}, where the others are not."


def other_op(
    culprits: Ranks,
    others: Ranks,
    ops: tuple[str, str],
    where: str,
    sites: tuple[Site | None, Site | None],
    guard: Guard | None,
) -> Text:
    """Different collectives at one place."""
    site, other_site = sites
    headline = (
        f"{capital(the_ranks(culprits))} entered {ops[0]}{at_line(site)} where {the_ranks(others)} "
        f"entered {ops[1]}{at_line(other_site)}: {where}."
    )
    return Text(
        headline,
        _sentences(
            guard is not None and _guarded(culprits, others, guard),
            site and f"{capital(the_ranks(culprits))}: {place_in_code(site)}.",
            other_site and f"{capital(the_ranks(others))}: {place_in_code(other_site)}.",
        ),
    )


def skipped(
    culprits: Ranks,
    others: Ranks,
    ops: tuple[str, str],
    where: str,
    sites: tuple[Site | None, Site | None],
    guard: Guard | None,
) -> Text:
    """A collective that a few ranks left out."""
    site, other_site = sites
    headline = (
        f"{capital(the_ranks(culprits))} skipped {where}{at_line(other_site)}, where "
        f"{the_ranks(others)} {verb(others, 'waits', 'wait')}, and "
        f"{verb(culprits, 'is', 'are')} in {ops[0]}{at_line(site)}."
    )
    return Text(
        headline,
        _sentences(
            guard is not None
            and f"The condition `{guard.text}` at "
            f"{short_file(guard.file)}:{guard.line} decides it.",
            site and f"{capital(the_ranks(culprits))}: {place_in_code(site)}.",
            other_site and f"{capital(the_ranks(others))}: {place_in_code(other_site)}.",
        ),
    )


def undecided(candidates: Split, where: str, *, sites: Sequence[tuple[Ranks, Site]]) -> Text:
    """A disagreement in which nothing tells who is wrong."""
    parts = [f"{the_ranks(ranks)} entered {what}" for what, ranks in candidates.parts]
    if candidates.differs is not Differs.OP:
        parts = [f"{the_ranks(ranks)} have {what}" for what, ranks in candidates.parts]
    return Text(
        f"{capital(', '.join(parts))}: {where}.",
        _sentences(
            "There is no majority, and neither the source nor what came before tells which of them "
            "left the common program.",
            *(f"{capital(the_ranks(ranks))}: {place_in_code(site)}." for ranks, site in sites[:2]),
        ),
    )


def signature(culprits: Ranks, candidates: Split, where: str, site: Site | None) -> Text:
    """One collective with tensors or roots that do not fit."""
    mine = [what for what, ranks in candidates.parts if set(ranks) <= set(culprits)]
    rest = [f"{the_ranks(r)} with {w}" for w, r in candidates.parts if not set(r) <= set(culprits)]
    headline = (
        f"{capital(the_ranks(culprits))} entered {where}{at_line(site)} with {' or '.join(mine)}, "
        f"{', '.join(rest)}."
    )
    return Text(
        headline,
        _sentences(
            f"A collective needs the same {candidates.differs} on all its ranks.",
            site and f"{capital(the_ranks(culprits))}: {place_in_code(site)}.",
        ),
    )


def stuck(members: Ranks, where: str, site: Site | None, *, alike: bool) -> Text:
    """All are there, and nothing moves."""
    entered = "with the same signature" if alike else "as far as is known"
    return Text(
        f"{capital(the_ranks(members))} all entered {where}, and it does not complete; "
        "no rank is to blame.",
        _sentences(
            f"Every member has entered it {entered}, so no rank is missing from it.",
            site and f"They wait at {place_in_code(site)}.",
        ),
    )


def cycle(parts: Sequence[tuple[Ranks, str, Site | None]]) -> Text:
    """Ranks that wait for each other in different places."""
    everyone = tuple(sorted({rank for ranks, _, _ in parts for rank in ranks}))
    where = ", ".join(f"{the_ranks(ranks)} in {spot}{at_line(site)}" for ranks, spot, site in parts)
    return Text(
        f"{capital(the_ranks(everyone))} wait for each other: {where}.",
        _sentences(
            "Each waits for one that comes to it only after what it waits in itself.",
            *(
                f"{capital(the_ranks(ranks))}: {place_in_code(site)}."
                for ranks, _, site in parts[:4]
                if site is not None
            ),
        ),
    )


def missing_peer(
    culprits: Ranks,
    waiter: int,
    where: str,
    wanted: str,
    now: str,
    sites: tuple[Site | None, Site | None],
) -> Text:
    """A point-to-point call without its counterpart."""
    site, waiter_site = sites
    headline = (
        f"{capital(the_ranks(culprits))} never posted the {wanted} for rank {waiter}'s {where}"
        f"{at_line(waiter_site)}: {now}."
    )
    return Text(
        headline,
        _sentences(
            waiter_site and f"Rank {waiter} waits at {place_in_code(waiter_site)}.",
            site
            and f"{capital(the_ranks(culprits))} {verb(culprits, 'is', 'are')} at "
            f"{place_in_code(site)}.",
        ),
    )


def init_incomplete(
    culprits: Ranks,
    victims: Ranks,
    call: str,
    now: str,
    site: Site | None,
    victim_site: Site | None,
) -> Text:
    """Ranks missing from a call that all have to make."""
    if culprits:
        headline = (
            f"{capital(the_ranks(culprits))} never reached {call}: {now}"
            f"{waiting(victims, culprits, there=True)}"
        )
    else:
        headline = f"All ranks are in {call}, and it does not complete."
    return Text(
        headline,
        _sentences(
            site
            and f"{capital(the_ranks(culprits))} {verb(culprits, 'is', 'are')} at "
            f"{place_in_code(site)}.",
            _they_wait(victims, victim_site),
        ),
    )


def waiting(victims: Ranks, culprits: Ranks, where: str = "", *, there: bool = False) -> str:
    """``; ranks 0, 1 and 3 wait for it in all_reduce #3.``."""
    if not victims:
        return "."
    them = verb(culprits, "it", "them")
    tail = (f" in {where}" if where else "") + (" there" if there else "")
    return f"; {the_ranks(victims)} {verb(victims, 'waits', 'wait')} for {them}{tail}."


def _they_wait(victims: Ranks, site: Site | None) -> str:
    if not victims or site is None:
        return ""
    return (
        f"{capital(the_ranks(victims))} {verb(victims, 'waits', 'wait')} at {place_in_code(site)}."
    )


def _sentences(*parts: object) -> str:
    """Those parts that are there, one after the other."""
    return " ".join(part for part in parts if isinstance(part, str) and part)
