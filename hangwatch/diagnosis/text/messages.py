"""The sentences on messages that ranks wait for, and that none of them sends or takes."""

from __future__ import annotations

from collections.abc import Sequence

from hangwatch.diagnosis.text.phrases import at_line, capital, place_in_code, the_ranks
from hangwatch.diagnosis.text.wording import Scene, Text, sentences


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
