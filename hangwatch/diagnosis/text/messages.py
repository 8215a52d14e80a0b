"""Sentences on messages and store keys that ranks wait for in vain."""

from __future__ import annotations

from collections.abc import Sequence

from hangwatch.diagnosis.facts.stores import Setter
from hangwatch.diagnosis.text.phrases import at_line, place_in_code
from hangwatch.diagnosis.text.wording import Scene, Text, sentences
from hangwatch.text import capital, code_line, the_ranks, verb


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
    return Text(
        f"Rank {first} {does} with {names[0]}{at_line(scene.site)} what rank {second} {theirs} "
        f"with {names[1]}{at_line(scene.other_site)}.",
        sentences(
            "A send and a recv are of one message only with the same tag and in the same group.",
            f"The tags of rank {first} went up by {leap[0]} each time before, and by {leap[1]} now."
            if leap
            else "",
            f"Rank {first} is at {place_in_code(scene.site)}." if scene.site else "",
            f"Rank {second} is at {place_in_code(scene.other_site)}." if scene.other_site else "",
        ),
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
    return Text(
        f"{capital(the_ranks(scene.culprits))} wait to {mine}{at}, each for another of them, and "
        f"{does}.",
        sentences(
            f"{count} are in a call of one direction in {scene.where}.",
            scene.seen() if len(lines) == 1 else "",
            *(f"{place_in_code(site)}." for site in lines if len(lines) > 1),
        ),
    )


def never_set(scene: Scene, setter: Setter) -> Text:
    """Ranks that should have set a key, by what they did before."""
    did = "did not set" if setter.by_form else f"did not come by {code_line(setter.site)} for"
    return Text(
        f"{scene.they} {did} {scene.where}{scene.awaited()}",
        sentences(
            set_before(setter),
            scene.seen() if code_line(scene.site) != code_line(scene.other_site) else "",
            scene.waiting(),
        ),
    )


def set_before(setter: Setter) -> str:
    """Where such keys were set, and how often."""
    alike: dict[int, list[int]] = {}
    for rank, count in sorted(setter.counts.items()):
        alike.setdefault(count, []).append(rank)
    told = [
        f"{the_ranks(ranks)} ({'once' if count == 1 else f'{count} times'})"
        for count, ranks in sorted(alike.items())
    ]
    what = "Such keys were" if setter.by_form else "Keys were"
    return (
        f"{what} set at {place_in_code(setter.site)} by {', by '.join(told)}: the last one was "
        f"`{setter.key}`."
    )


def asks_for_another(scene: Scene, setter: Setter) -> Text:
    """Ranks that ask for a key that is unlike the one that others asked for in the same turn."""
    wait = verb(scene.culprits, "waits", "wait")
    return Text(
        f"{scene.they} {wait} for {scene.where}, where {the_ranks(scene.others)} asked for "
        f"`{setter.key}`, which was set.",
        sentences(set_before(setter), scene.seen()),
    )


def one_more(scene: Scene, setter: Setter) -> Text:
    """Ranks that have set such keys and have gone on, while others wait for one more."""
    wait, have = verb(scene.others, "waits", "wait"), verb(scene.culprits, "has", "have")
    return Text(
        f"{capital(the_ranks(scene.others))} {wait} for {scene.where}, and "
        f"{the_ranks(scene.culprits)} {have} set such keys as far as `{setter.key}` and gone on.",
        sentences(
            set_before(setter),
            "One side has set too few, or the other one asks for one too many.",
            scene.seen(),
            scene.waiting(),
        ),
    )


def set_by_nobody(scene: Scene) -> Text:
    """Ranks that all wait for keys, and none of them is known to set such ones."""
    return Text(
        f"{scene.they} {verb(scene.culprits, 'waits', 'wait')} for {scene.where}, and no rank is "
        "at work.",
        sentences("It was not seen that a rank has set a key of that form.", scene.seen()),
    )
