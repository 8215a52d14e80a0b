"""The sentences on the cause of what the culprits of a finding did."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from hangwatch.diagnosis.facts.awaited import Link, On
from hangwatch.diagnosis.facts.blocked import Blocked
from hangwatch.diagnosis.facts.history import PEER
from hangwatch.diagnosis.facts.stores import KEY
from hangwatch.diagnosis.source.alike import Unordered
from hangwatch.diagnosis.source.flow import Choice, Turn
from hangwatch.diagnosis.text.phrases import Ranks, at_line, place_in_code
from hangwatch.model.calls import Site
from hangwatch.model.kinds import What
from hangwatch.model.snapshot import Mark
from hangwatch.text import capital, code_line, the_ranks, verb

MOST_OF_A_LINE = 70
MOST_OF_A_CALL = 40


@dataclass(frozen=True, slots=True)
class Parted:
    """Two ways from one call: that of the culprits, and the other one."""

    culprits: Ranks
    other: int | None
    """A rank that went the other way; None where the culprits did before."""
    start: Site | None
    """The last call that both made."""
    mine: Site | None
    """The line that the culprits came to; None for the end of the program."""
    theirs: Site | None


_MORE = {
    What.STUCK_LINE: "It is this line that does not come to its end: as far as is known nothing "
    "was left out.",
    What.DIFFERENT_ORDER: "All make these calls, and not all in this order.",
    What.DIFFERENT_ARGUMENT: "All make this call, and not all with the same arguments.",
    What.UNMATCHED_P2P: "Nothing that was found in the source leads past it.",
    What.UNORDERED_THREADS: "Two threads use one group, and nothing orders their calls.",
    What.GROUP_CREATION: "Each group has to be made by all ranks of the job, in one order.",
    What.SETUP: "All ranks have to come to it, and not all did.",
    What.PROCESS_GONE: "The others cannot go on without this process.",
    What.DEVICE: "The program has made all its calls: the device does not come to them.",
    What.NETWORK: "All made the call, and their data do not come through.",
}


AT_TWO_LINES = (
    "They come to it at two lines: these are not one call of the program, or its two sides do not "
    "agree on what they send."
)


OF_MESSAGES = {
    "tag": "Each side makes up the tag by itself, and they are not the same any more.",
    "group": "Each side names another group.",
    PEER: "Its message goes where it went before, and another rank waits for one of its by now.",
    KEY: "Each side makes up the key by itself, and they are not the same any more.",
}
"""The reason that a send and a recv are not of one message, or that a key is not the one that was
set, by what differs."""


_WITHOUT_ORDER = {
    Unordered.SET: "a set, which has another order in each process: Python hashes text with a seed "
    "of its own",
    Unordered.FILES: "files as the system lists them, in no order that is the same everywhere",
}


def without_order(site: Site, over: Unordered) -> str:
    """A loop over an iterable without an order."""
    return f"{_code(site)} goes over {_WITHOUT_ORDER[over]}."


def sized_by_data(site: Site) -> str:
    """An expression that gives a tensor a size that is not the same on all ranks."""
    return f"The size of what {_code(site)} gives depends on the data of the rank."


def taken_before(loop: Site, site: Site) -> str:
    """An expression that uses an iterator before the loop that goes over it."""
    return (
        f"{_code(site)} may have taken from the iterator that {_code(loop)} goes over, which gives "
        "each element once."
    )


def put_by_rank(site: Site) -> str:
    """A statement that puts a value of the rank's own into the data of a root."""
    return (
        f"{_code(site)} puts a value of the rank's own into what the root is computed from: not "
        "all ranks have the same there."
    )


def set_for_few(site: Site, decided: Site) -> str:
    """A condition on the rank below which something is set that decides another line."""
    return (
        f"What is set below {_code(site)} may be set on some ranks alone, and {_code(decided)} "
        "depends on it."
    )


def in_callback(site: Site) -> str:
    """A condition in a function that a library calls back, from a call that all are in."""
    return (
        f"{_code(site)} decides on each rank by itself what the library does that all are in: not "
        "all need have decided alike."
    )


def in_finalizer() -> str:
    """A call that ``__del__`` makes."""
    return (
        "It is called by `__del__`, which runs once nothing refers to the object any more, and at "
        "the next garbage collection in a cycle: that is another moment on each rank."
    )


def all_one_way(ranks: Ranks, site: Site) -> str:
    """A condition that all of some ranks answered alike, where one of them should not have."""
    return f"{_code(site)} led {the_ranks(ranks)} one way, and what they wait for is on the other."


def in_loop_alone(rank: int, other: int, loop: Site) -> str:
    """Two ranks that send, or receive, each in a loop of its own."""
    return (
        f"Rank {rank} is in a turn of {_code(loop)}, and rank {other} is not: they may not make as "
        "many messages in such a turn, or not as many turns."
    )


def of_kind(what: What) -> str:
    """The reason by the kind of cause alone, where the source shows none; empty for the rest."""
    return _MORE.get(what, "")


def of_wait(ranks: Ranks, blocked: Blocked) -> str:
    """The wait of a line that does not come to its end, empty where it is not known."""
    link, where = blocked.link, blocked.until
    if where is not None and blocked.on is On.RETRY:
        return f"It tries {_code(where)} again and again, which raises {blocked.what} each time."
    if where is not None and blocked.on is On.LOOP:
        return f"It is in {_code(where)}, in which the source shows no call for other ranks."
    if where is not None:
        return f"It sleeps again and again, as long as {_code(where)} goes on."
    if blocked.instead is not None:
        (rank,) = blocked.instead.counts
        what, at = blocked.instead.key, code_line(blocked.instead.site)
        return f"It was not seen that it was set: rank {rank} has set `{what}` at {at}."
    return _of_link(ranks, link) if link is not None else ""


def _had_by(ranks: Ranks, link: Link) -> str:
    """A thread or process that others have and these ranks have not."""
    what = link.name if link.site else f"a process `{_one_line(link.command)}`"
    at = f", at {place_in_code(link.site)}" if link.site else ""
    have, has = (verb(some, "has", "have") for some in (link.had_by, ranks))
    if link.idle:
        return (
            f"{capital(the_ranks(link.had_by))} {have} {what}{at}; that of {the_ranks(ranks)} "
            "has nothing to do: its job has ended."
        )
    return f"{capital(the_ranks(link.had_by))} {have} {what}{at}; {the_ranks(ranks)} {has} none."


def _of_link(ranks: Ranks, link: Link) -> str:
    """The state of the thread or process by which a wait would end."""
    if link.ended_by:
        return f"{capital(link.name)} has ended at {place_in_code(link.site)}, by {link.ended_by}."
    if link.had_by:
        return _had_by(ranks, link)
    who = capital(link.name)
    if link.holds is not None:
        has = f"{who} has it since {_code(link.holds)}, and is at {place_in_code(link.site)}"
        crossed = f": a lock that the other has since {_code(link.crossed)}" if link.crossed else ""
        return f"{has}{crossed}."
    if link.crossed is not None:
        return (
            f"{who} waits at {place_in_code(link.site)} for a lock that the main program has "
            f"since {_code(link.crossed)}: neither can go on."
        )
    if link.command:
        does = f"waits for {link.waits_for}" if link.waits_for else "has not ended"
        at = f", and is at {place_in_code(link.site)}" if link.site else ""
        return f"{who} (`{_one_line(link.command)}`) {does}{at}."
    return (
        f"The rank has one other thread of the program: {link.name} at {place_in_code(link.site)}."
    )


def returned(ranks: Ranks, blocked: Blocked | None) -> str:
    """The end of a rank whose process lives on, to follow ``finished early``."""
    link = blocked.link if blocked else None
    thread = (
        f"{link.name} ({code_line(link.site)})" if link and link.site else "what it has started"
    )
    its = verb(ranks, "its", "their")
    return f"{its} main program is over, and Python waits for {thread}"


def kept_local(culprits: Ranks, mine: int, others: Ranks, theirs: int) -> str:
    """The number of times that ranks kept gradients to themselves."""
    return (
        f"{capital(the_ranks(culprits))} kept gradients local here (no_sync) {_times(mine)}, and "
        f"{the_ranks(others)} {_times(theirs)}."
    )


def handling(ranks: Ranks, handled: Mark) -> str:
    """An exception on its way through a rank."""
    return (
        f"{capital(the_ranks(ranks))} {verb(ranks, 'is', 'are')} handling "
        f"{_one_line(handled.text)}, which was raised{at_line(handled.site)}."
    )


def ended_thread(ranks: Ranks, died: Mark) -> str:
    """A thread that an exception ended."""
    name, _, error = died.text.partition(": ")
    return (
        f"Thread {name} of {the_ranks(ranks)} has ended{at_line(died.site)}, by "
        f"{_one_line(error)}: nothing more came of it."
    )


def ended_generator(loop: Site, site: Site, ranks: Ranks) -> str:
    """A loop over a generator that may have ended before its time."""
    over = f"what {_code(loop)} goes over, which ended earlier on {the_ranks(ranks)}"
    return f"{_code(site)} ends {over}."


def repeated(site: Site, ranks: Ranks) -> str:
    """A statement that repeats what has raised."""
    return (
        f"{_code(site)} has what raised made once more: {the_ranks(ranks)} may have made the calls "
        "within twice."
    )


def no_gradient(culprits: Ranks) -> str:
    """The error by which torch itself reports that a bucket was not reduced."""
    return (
        f"In the step before, parameters got no gradient on {the_ranks(culprits)}: "
        "DistributedDataParallel reduces a bucket once all of its gradients are there."
    )


def bucket_left_out(culprits: Ranks, site: Site | None) -> str:
    """A bucket that was left out, where nothing leads past a backward pass."""
    return (
        f"Nothing that was found in the source leads past the backward pass{at_line(site)}. "
        f"Where parameters get no gradient on {the_ranks(culprits)}, the backward pass leaves "
        "their bucket out."
    )


def in_another_step(culprits: Ranks) -> str:
    """Ranks that are in no_sync by turns, equally often."""
    return (
        "Nothing that was found in the source leads past the backward pass in which the others "
        f"wait. Ranks are here (no_sync) by turns: {the_ranks(culprits)} may have been in it in "
        "another step."
    )


def to_another(sender: Ranks, peer: int, before: Ranks) -> str:
    """A message to a rank that none of its line went to before."""
    return (
        f"{capital(the_ranks(sender))} turns to rank {peer} here, where its calls of this line "
        f"were with {the_ranks(before)} before."
    )


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _of_call(ranks: str, other: str, site: Site, choice: Choice) -> str:
    """Another function that was called, or one that was not run again."""
    here = _code(site)
    if isinstance(choice.node, ast.FunctionDef):
        return f"{here} stands in for the method that the others are in, and does not call it"
    if "cache" in (site.source or ""):
        ran = "was run" if choice.taken else "was not run again"
        return f"{here} keeps a result: what gives it {ran} on {ranks}, unlike {other}"
    return f"What {here} runs was not the same on {ranks} as {other}"


def of_choice(what: What, site: Site, choice: Choice, parted: Parted) -> str:
    """The choice at which the ways of culprits and others part."""
    ranks, here = the_ranks(parted.culprits), _code(site)
    other = "before" if parted.other is None else f"on {the_ranks((parted.other,))}"
    match what:
        case What.RANK_CONDITION:
            reason = f"{here} depends on the rank"
        case What.UNEVEN_LOOP if choice.taken and choice.turn is Turn.LOOP:
            reason = f"The loop {here} had more turns on {ranks} than {other}"
        case What.UNEVEN_LOOP:
            reason = f"The loop {here} ended earlier on {ranks} than {other}"
        case What.EARLY_EXIT:
            reason = f"{here} was reached on {ranks}, and not {other}"
        case What.SKIPPED_ITERATION:
            reason = f"{here} ended a turn of the loop early on {ranks}, and not {other}"
        case What.SWALLOWED_EXCEPTION:
            reason = _of_exception(ranks, site.source or "", here)
        case What.DIFFERENT_ORDER:
            reason = f"{here} changes the order of calls on {ranks}, and not {other}"
        case _ if choice.turn is Turn.CALL:
            reason = _of_call(ranks, other, site, choice)
        case _:
            reason = f"{here} was decided otherwise on {ranks} than {other}"
    return f"{reason}."


def evidence(parted: Parted) -> tuple[str, ...]:
    """Both ways, each from its start to its end."""
    came = f"from {_where(parted.start)} " if parted.start else ""
    other = "in earlier turns" if parted.other is None else the_ranks((parted.other,))
    return (
        f"{capital(the_ranks(parted.culprits))}: {came}to {_where(parted.mine)}.",
        f"{capital(other)}: {came}to {_where(parted.theirs)}.",
    )


def _of_exception(ranks: str, text: str, here: str) -> str:
    """The statement to which an exception led ranks. text: its line."""
    if text.startswith("finally"):
        return f"An exception led {ranks} to {here}"
    if text.startswith(("with ", "async with ")) and "suppress(" not in text:
        return f"An exception on {ranks} ended the block of {here}"
    return f"An exception on {ranks} was caught by {here}"


def _cut(text: str, most: int = MOST_OF_A_LINE) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()}..."


def _one_line(text: str) -> str:
    """``text`` in one line, cut where it gets long."""
    return _cut(" ".join(text.split()))


def _code(site: Site, most: int = MOST_OF_A_LINE) -> str:
    """```for batch in loader` at train.py:41``."""
    shown = _cut((site.source or "").partition("  #")[0].rstrip(":"), most)
    return f"`{shown}` at {code_line(site)}" if shown else code_line(site)


def _where(site: Site | None) -> str:
    return "the end of the program" if site is None else _code(site, MOST_OF_A_CALL)
