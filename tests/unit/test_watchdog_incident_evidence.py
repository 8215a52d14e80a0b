"""What is made of several looks at the processes of a node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from made_pages import event
from made_pages import page as made_page
from snapshots import rank

from hangwatch.model.snapshot import ProcessState
from hangwatch.watchdog.incident import evidence
from hangwatch.watchdog.incident.evidence import Gatherer

if TYPE_CHECKING:
    import pytest

    from hangwatch.model.page import RankPage
    from hangwatch.model.snapshot import RankSnapshot


class Look:
    """A tree of processes, in which one process has used so many seconds."""

    def __init__(self, at_s: float, used_s: float) -> None:
        self.at_s = at_s
        self.used_s = used_s

    def processors(self, _pid: int, before: Look) -> float:
        return (self.used_s - before.used_s) / (self.at_s - before.at_s)


class Told:
    """Takes in what is said of faults of ours."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def fault(self, _key: str, text: str, _error: BaseException) -> None:
        self.faults.append(text)


def gatherer(news: Any = None, exits: Any = None) -> Gatherer:
    nothing: Any = None
    return Gatherer(
        pages=nothing, exits=exits, py_spy=nothing, news=news, node="n0", commands=nothing
    )


def found(pid: int) -> Any:
    return evidence._RankEvidence(pid, ProcessState(alive=True))  # noqa: SLF001 (what is noted)


def test_what_goes_wrong_with_one_rank_is_missing_of_no_other() -> None:
    told, odd, fine = Told(), found(7), found(8)

    async def breaks() -> None:
        raise KeyError("a field that no recorder writes")

    async def works() -> None:
        fine.threads = ()

    jobs = [evidence._Job(odd, breaks()), evidence._Job(fine, works())]  # noqa: SLF001
    asyncio.run(gatherer(told)._run(jobs, 5.0))  # noqa: SLF001 (without all that a look takes)
    assert odd.missing == ["evidence: KeyError while it was gathered"]
    assert (fine.missing, fine.threads) == ([], ())
    assert told.faults == ["evidence of process 7 is lost"]


def test_a_rank_whose_calls_are_odd_is_seen_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(page: RankPage, *_: Any, **__: Any) -> RankSnapshot:
        if page.events:
            raise OverflowError("no such time")
        return rank(page.identity.rank)

    monkeypatch.setattr(evidence, "rank_snapshot", snapshot)
    exits = SimpleNamespace(state=lambda *_: ProcessState(alive=True))
    told = Told()
    seen = gatherer(told, exits)._snapshots(  # noqa: SLF001 (of a page at hand)
        made_page(3, events=(event(1),)), found(7), 0, replaced=False
    )
    assert [(one.rank, one.missing_evidence) for one in seen] == [
        (3, ("evidence: OverflowError while it was gathered",))
    ]
    assert told.faults == ["evidence of process 7 is lost"]


def test_a_page_that_breaks_the_decoder_costs_its_rank_the_calls_alone() -> None:
    def read(*, events: bool) -> RankPage:
        raise OverflowError(f"no such time ({events})")

    light = made_page(3)
    told, odd = Told(), found(7)
    seen: Any = SimpleNamespace(page=SimpleNamespace(read=read), light=light)
    assert gatherer(told)._page(seen, odd) is light  # noqa: SLF001 (of a page at hand)
    assert odd.missing == ["evidence: OverflowError while it was gathered"]
    assert told.faults == ["evidence of process 7 is lost"]


def test_evidence_that_comes_too_late_is_missing_and_said_so() -> None:
    late = found(7)
    work = asyncio.Event().wait
    job = evidence._Job(late, work(), "no stack", "py-spy was not done in time")  # type: ignore[arg-type]  # noqa: SLF001
    asyncio.run(gatherer()._run([job], 0.05))  # noqa: SLF001 (without all that a look takes)
    assert late.missing == ["no stack: py-spy was not done in time"]


def test_a_rank_works_that_has_worked_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, one = gatherer(), found(7)

    def looked(before: Any, after: Look) -> float:
        monkeypatch.setattr(evidence, "Tree", lambda _proc: after)
        ours._processors([one], before)  # noqa: SLF001 (without all that a look takes)
        return float(one.processors)

    assert looked(Look(0.0, 1.0), Look(0.5, 1.0)) == 0.0
    # It got no processor for as long as that look took, but had worked until then.
    assert looked(Look(10.0, 6.0), Look(10.5, 6.0)) == 0.5
    # What has ended since the last look has taken its seconds with it.
    assert looked(Look(20.0, 0.0), Look(20.5, 0.5)) == 1.0
    assert looked(Look(30.0, 0.5), Look(30.5, 0.5)) == 0.0
