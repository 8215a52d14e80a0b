"""The sentences on keys of a store that ranks wait for."""

from __future__ import annotations

from hangwatch.diagnosis.facts.stores import Setter
from hangwatch.diagnosis.text.phrases import capital, line, place_in_code, the_ranks, verb
from hangwatch.diagnosis.text.wording import Scene, Text, sentences


def never_set(scene: Scene, setter: Setter) -> Text:
    """Ranks that should have set a key, by what they did before."""
    did = "did not set" if setter.by_form else f"did not come by {line(setter.site)} for"
    return Text(
        f"{scene.they} {did} {scene.where}{scene.awaited()}",
        sentences(
            set_before(setter),
            scene.seen() if line(scene.site) != line(scene.other_site) else "",
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
