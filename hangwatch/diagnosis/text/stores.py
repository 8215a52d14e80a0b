"""The sentences on keys of a store that ranks wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangwatch.diagnosis.text.phrases import capital, line, place_in_code, the_ranks, verb
from hangwatch.diagnosis.text.wording import Text, sentences

if TYPE_CHECKING:
    from hangwatch.diagnosis.facts.stores import Setter
    from hangwatch.diagnosis.text.wording import Scene


def never_set(scene: Scene, setter: Setter) -> Text:
    """Ranks that have set such keys before, and not the one that is waited for."""
    return Text(
        f"{scene.they} did not set {scene.where}{scene.awaited()}",
        sentences(
            set_before(setter),
            scene.seen() if line(scene.site) != line(scene.other_site) else "",
            scene.waiting(),
        ),
    )


def set_before(setter: Setter) -> str:
    """Where such keys were set, and how often."""
    many = max(setter.counts.values())
    times = "once" if many == 1 else f"{many} times"
    ranks = tuple(sorted(setter.counts))
    return (
        f"{capital(the_ranks(ranks))} set such keys {times} at {place_in_code(setter.site)}: the "
        f"last one was `{setter.key}`."
    )


def set_by_nobody(scene: Scene) -> Text:
    """Ranks that all wait for keys, and none of them is known to set such ones."""
    return Text(
        f"{scene.they} {verb(scene.culprits, 'waits', 'wait')} for {scene.where}, and no rank is "
        "left that could set it.",
        sentences("It was not seen that a rank has set a key of that form.", scene.seen()),
    )
