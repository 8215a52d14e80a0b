"""What is made of several looks at the processes of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangwatch.types.snapshot import ProcessState
from hangwatch.watchdog.incident import evidence
from hangwatch.watchdog.incident.evidence import Gatherer

if TYPE_CHECKING:
    import pytest


class Look:
    """A tree of processes, in which one process has used so many seconds."""

    def __init__(self, at_s: float, used_s: float) -> None:
        self.at_s = at_s
        self.used_s = used_s

    def processors(self, _pid: int, before: Look) -> float:
        return (self.used_s - before.used_s) / (self.at_s - before.at_s)


def test_a_rank_works_that_has_worked_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    gatherer = Gatherer(
        pages=nothing,
        exits=nothing,
        py_spy=nothing,
        news=nothing,
        node="n0",
        commands=nothing,
    )
    found: Any = evidence._Found(7, ProcessState(alive=True))  # noqa: SLF001 (what is noted)

    def looked(before: Any, after: Look) -> float:
        monkeypatch.setattr(evidence, "Tree", lambda _proc: after)
        gatherer._processors([found], before)  # noqa: SLF001 (without all that a look takes)
        return float(found.processors)

    assert looked(Look(0.0, 1.0), Look(0.5, 1.0)) == 0.0
    # It got no processor for as long as that look took, but had worked until then.
    assert looked(Look(10.0, 6.0), Look(10.5, 6.0)) == 0.5
    # What has ended since the last look has taken its seconds with it.
    assert looked(Look(20.0, 0.0), Look(20.5, 0.5)) == 1.0
    assert looked(Look(30.0, 0.5), Look(30.5, 0.5)) == 0.0
