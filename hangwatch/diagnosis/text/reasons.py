"""The sentences on the root cause of a finding."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from hangwatch.diagnosis.facts.awaited import Link, On
from hangwatch.diagnosis.facts.blocked import Blocked
from hangwatch.diagnosis.facts.history import PEER
from hangwatch.diagnosis.facts.stores import KEY
from hangwatch.diagnosis.source.alike import Unordered
from hangwatch.diagnosis.source.flow import Branch, Choice
from hangwatch.diagnosis.text.phrases import Ranks, at_line, place_in_code
from hangwatch.model.calls import Site
from hangwatch.model.kinds import What
from hangwatch.model.snapshot import Mark
from hangwatch.text import capital, code_line, the_ranks, verb

MOST_OF_A_LINE = 70
MOST_OF_A_CALL = 40


@dataclass(frozen=True, slots=True)
class TwoPaths:
    """Two paths from one call: that of the culprits, and another one."""

    culprits: Ranks
    other: int | None
    """A rank on the other path; None if the culprits took it before."""
    start: Site | None
    """The last call that both made."""
    mine: Site | None
    """The line that the culprits reached; None for the end of the program."""
    theirs: Site | None


_MORE = {
    What.STUCK_LINE: "This line does not finish: as far as is known no call was skipped.",
    What.DIFFERENT_ORDER: "All ranks make these calls, but not all in this order.",
    What.DIFFERENT_ARGUMENT: "All ranks make this call, but not all with the same arguments.",
    What.UNMATCHED_P2P: "No path past it was found in the source.",
    What.UNORDERED_THREADS: "Two threads use one group, and nothing orders their calls.",
    What.GROUP_CREATION: "All ranks of the job have to create each group, in one order.",
    What.SETUP: "All ranks have to reach it, but not all did.",
    What.PROCESS_GONE: "The other ranks cannot continue without this process.",
    What.DEVICE: "The program has made all its calls, but the device does not reach them.",
    What.NETWORK: "All ranks made the call, but their data do not arrive.",
}


AT_TWO_LINES = (
    "They enter it at two different lines: either these are different calls of the program, or its "
    "two sides do not agree on what they send."
)


OF_MESSAGES = {
    "tag": "Each side computes the tag by itself, and the two no longer agree.",
    "group": "The two sides pass different groups.",
    PEER: "It communicates with the same rank as before, but by now another rank waits for it.",
    KEY: "Each side computes the key by itself, and the two no longer agree.",
}
"""The reason that a send and a recv do not match, or that a rank waits for another key than the
one that was set, by what differs."""


_WITHOUT_ORDER = {
    Unordered.SET: "a set, whose order differs between processes: Python hashes text with a random "
    "seed",
    Unordered.FILES: "files in the order in which the system lists them, which may differ",
}


def without_order(site: Site, over: Unordered) -> str:
    """A loop over an iterable without an order."""
    return f"{_code(site)} iterates over {_WITHOUT_ORDER[over]}."


def sized_by_data(site: Site) -> str:
    """An expression whose result may have another size on each rank."""
    return f"The size of the result of {_code(site)} depends on the data of the rank."


def taken_before(loop: Site, site: Site) -> str:
    """An expression that uses an iterator before the loop over it."""
    return (
        f"{_code(site)} may have taken from the iterator of {_code(loop)}, which gives each "
        "element once."
    )


def put_by_rank(site: Site) -> str:
    """A statement that makes the data of a root depend on the rank."""
    return (
        f"{_code(site)} puts a value that depends on the rank into the data that the root is "
        "computed from."
    )


def set_for_few(site: Site, decided: Site) -> str:
    """A condition on the rank, below which something is set that decides another line."""
    return f"{_code(decided)} depends on what is set below {_code(site)}, maybe on some ranks only."


def in_callback(site: Site) -> str:
    """A condition in a callback of a library, whose call all ranks are in."""
    return (
        f"Each rank decides {_code(site)} by itself, and thereby what the library call that all "
        "are in does: the ranks may have decided differently."
    )


def in_finalizer() -> str:
    """A call that ``__del__`` makes."""
    return (
        "`__del__` makes this call, once the last reference to the object is gone or at a garbage "
        "collection: at a different moment on each rank."
    )


def all_one_way(ranks: Ranks, site: Site) -> str:
    """A condition that led some ranks the same way, where one should have gone the other way."""
    return (
        f"{_code(site)} led {the_ranks(ranks)} into the same branch, and what they wait for is in "
        "the other one."
    )


def in_loop_alone(rank: int, other: int, loop: Site) -> str:
    """Two ranks that send, or receive, each in its own loop."""
    return (
        f"Rank {rank} is in an iteration of {_code(loop)}, and rank {other} is not: they may not "
        "make as many messages in an iteration, or not as many iterations."
    )


def of_kind(what: What) -> str:
    """The reason by the kind of cause alone, if the source shows none; empty for other kinds."""
    return _MORE.get(what, "")


def of_wait(ranks: Ranks, blocked: Blocked) -> str:
    """The wait of a line that does not finish, empty if it is not known."""
    link, where = blocked.link, blocked.until
    if where is not None and blocked.on is On.RETRY:
        return f"It retries {_code(where)}, which raises {blocked.what} each time."
    if where is not None and blocked.on is On.LOOP:
        return f"It is in {_code(where)}, which communicates with no other rank as far as is known."
    if where is not None:
        return f"It sleeps repeatedly in {_code(where)}."
    if blocked.instead is not None:
        (rank,) = blocked.instead.counts
        what, at = blocked.instead.key, code_line(blocked.instead.site)
        return f"No rank was seen to set it; rank {rank} set `{what}` at {at}."
    return _of_link(ranks, link) if link is not None else ""


def _had_by(ranks: Ranks, link: Link) -> str:
    """A thread or process that other ranks have and these do not."""
    what = link.name if link.site else f"a process `{_one_line(link.command)}`"
    at = f", at {place_in_code(link.site)}" if link.site else ""
    have, has = (verb(some, "has", "have") for some in (link.had_by, ranks))
    if link.idle:
        return (
            f"{capital(the_ranks(link.had_by))} {have} {what}{at}; that of {the_ranks(ranks)} "
            "is idle: its job has ended."
        )
    return f"{capital(the_ranks(link.had_by))} {have} {what}{at}; {the_ranks(ranks)} {has} none."


def _of_link(ranks: Ranks, link: Link) -> str:
    """The state of the thread or process that would end a wait."""
    if link.ended_by:
        return f"{capital(link.name)} ended at {place_in_code(link.site)} with {link.ended_by}."
    if link.had_by:
        return _had_by(ranks, link)
    who = capital(link.name)
    if link.holds is not None:
        does, lock = "is", ""
        if link.crossed is not None:
            lock = f" for a lock that the other thread has held since {_code(link.crossed)}"
            does = "waits"
        held = f"{who} has held it since {_code(link.holds)}"
        return f"{held} and {does} at {place_in_code(link.site)}{lock}."
    if link.crossed is not None:
        return (
            f"{who} waits at {place_in_code(link.site)} for a lock that the main program has "
            f"held since {_code(link.crossed)}: neither can continue."
        )
    if link.command:
        does = f"waits for {link.waits_for}" if link.waits_for else "has not ended"
        at = f", and is at {place_in_code(link.site)}" if link.site else ""
        return f"{who} (`{_one_line(link.command)}`) {does}{at}."
    return (
        f"The only other thread of the program on this rank is {link.name}, at "
        f"{place_in_code(link.site)}."
    )


def returned(ranks: Ranks, blocked: Blocked | None) -> str:
    """The end of a rank whose process lives on, to follow ``finished early``."""
    link = blocked.link if blocked else None
    thread = (
        f"{link.name} ({code_line(link.site)})"
        if link and link.site
        else "something that it started"
    )
    its = verb(ranks, "its", "their")
    return f"{its} main program has ended, and Python waits for {thread}"


def kept_local(culprits: Ranks, mine: int, others: Ranks, theirs: int) -> str:
    """The number of times that ranks kept gradients to themselves."""
    return (
        f"{capital(the_ranks(culprits))} kept gradients local here (no_sync) {_times(mine)}, and "
        f"{the_ranks(others)} {_times(theirs)}."
    )


def handling(ranks: Ranks, handled: Mark) -> str:
    """An exception that a rank is handling."""
    return (
        f"{capital(the_ranks(ranks))} {verb(ranks, 'is', 'are')} handling "
        f"{_one_line(handled.text)}, which was raised{at_line(handled.site)}."
    )


def ended_thread(ranks: Ranks, died: Mark) -> str:
    """A thread that an exception ended."""
    name, _, error = died.text.partition(": ")
    return (
        f"Thread {name} of {the_ranks(ranks)} ended{at_line(died.site)} with {_one_line(error)} "
        "and did no more work."
    )


def ended_generator(loop: Site, site: Site, ranks: Ranks) -> str:
    """A loop over a generator that may have ended too early."""
    return (
        f"{_code(site)} ends what {_code(loop)} iterates over, which ended earlier on "
        f"{the_ranks(ranks)}."
    )


def repeated(site: Site, ranks: Ranks) -> str:
    """A statement that retries the code that raised."""
    return (
        f"{_code(site)} retries the code that raised: {the_ranks(ranks)} may have made its calls "
        "twice."
    )


def no_gradient(culprits: Ranks) -> str:
    """The error by which torch itself reports that a bucket was not reduced."""
    return (
        f"In the previous step, parameters got no gradient on {the_ranks(culprits)}: "
        "DistributedDataParallel reduces a bucket once it has all of its gradients."
    )


def bucket_left_out(culprits: Ranks, site: Site | None) -> str:
    """A gradient bucket that was not reduced, if no path past a backward pass is known."""
    return (
        f"No path past the backward pass{at_line(site)} was found in the source. If parameters get "
        f"no gradient on {the_ranks(culprits)}, the backward pass does not reduce their bucket."
    )


def in_another_step(culprits: Ranks) -> str:
    """Ranks that enter no_sync equally often, in different steps."""
    return (
        "No path past the backward pass in which the others wait was found in the source. Ranks "
        f"enter no_sync here equally often: {the_ranks(culprits)} may have done so in another step."
    )


def to_another(sender: Ranks, peer: int, before: Ranks) -> str:
    """A message to a rank that no earlier message of its line went to."""
    return (
        f"{capital(the_ranks(sender))} communicates with rank {peer} here; earlier calls of this "
        f"line were with {the_ranks(before)}."
    )


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _of_call(ranks: str, other: str, site: Site, choice: Choice) -> str:
    """A call that ran another function, or did not run a cached one again."""
    here = _code(site)
    if isinstance(choice.node, ast.FunctionDef):
        return f"{here} overrides the method that the others are in, and does not call it"
    if "cache" in (site.source or ""):
        ran = "ran" if choice.taken else "did not run again"
        return f"{here} caches a result: its function {ran} on {ranks}, unlike {other}"
    return f"{here} ran different code on {ranks} than {other}"


def of_choice(what: What, site: Site, choice: Choice, paths: TwoPaths) -> str:
    """The choice at which culprits and others took different paths."""
    ranks, here = the_ranks(paths.culprits), _code(site)
    other = "before" if paths.other is None else f"on {the_ranks((paths.other,))}"
    match what:
        case What.RANK_CONDITION:
            reason = f"{here} depends on the rank"
        case What.UNEVEN_LOOP if choice.taken and choice.kind is Branch.LOOP:
            reason = f"The loop {here} ran more iterations on {ranks} than {other}"
        case What.UNEVEN_LOOP:
            reason = f"The loop {here} ended earlier on {ranks} than {other}"
        case What.EARLY_EXIT:
            reason = f"{here} was reached on {ranks}, but not {other}"
        case What.SKIPPED_ITERATION:
            reason = f"{here} ended an iteration early on {ranks}, but not {other}"
        case What.SWALLOWED_EXCEPTION:
            reason = _of_exception(ranks, site.source or "", here)
        case What.DIFFERENT_ORDER:
            reason = f"{here} changes the order of calls on {ranks}, but not {other}"
        case _ if choice.kind is Branch.CALL:
            reason = _of_call(ranks, other, site, choice)
        case _:
            reason = f"{here} was decided differently on {ranks} than {other}"
    return f"{reason}."


def evidence(paths: TwoPaths) -> tuple[str, ...]:
    """Both paths, each from its start to its end."""
    came = f"from {_where(paths.start)} " if paths.start else ""
    other = "in earlier iterations" if paths.other is None else the_ranks((paths.other,))
    return (
        f"{capital(the_ranks(paths.culprits))}: {came}to {_where(paths.mine)}.",
        f"{capital(other)}: {came}to {_where(paths.theirs)}.",
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
